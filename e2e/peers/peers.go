// SPDX-License-Identifier: MPL-2.0

// Package peers finds the programs that nomad-gpu works with, and builds them
// from their module files where they are not installed.
package peers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Names of the programs, with the versions that the module files here build.
var Names = []string{"consul", "nomad", "nomad-autoscaler"}

// Root is the project's folder.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Cache is where built programs are kept.
func Cache() string { return filepath.Join(Root(), ".cache", "peers") }

// Find returns a program's path: from the variable NOMAD_BIN, CONSUL_BIN or
// NOMAD_AUTOSCALER_BIN, else from the PATH, else from the cache.
func Find(name string) (string, error) {
	variable := strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + "_BIN"
	if path := os.Getenv(variable); path != "" {
		if _, err := exec.LookPath(path); err != nil {
			return "", fmt.Errorf("%s: %w", variable, err)
		}
		return filepath.Abs(path)
	}
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	path := filepath.Join(Cache(), name)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s is not on the PATH and not built yet: run `make peers`", name)
	} else if err != nil {
		return "", err
	}
	return path, nil
}
