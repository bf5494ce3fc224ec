// SPDX-License-Identifier: MPL-2.0

// Package nvml reads the machine through NVIDIA's management library. It is
// the only package that imports the binding.
//
// The binding ends the process when a function is called that the installed
// library lacks. So every function is looked up first, once, and one that is
// missing counts as not supported.
package nvml

import (
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// defaultLibrary is found by the dynamic loader.
const defaultLibrary = "libnvidia-ml.so.1"

// ErrStale says that the driver was replaced while its old library is loaded.
// The old one can never talk to the new driver, and a library in use cannot be
// unloaded: only a new process helps.
var ErrStale = errors.New("the NVIDIA driver was replaced since its library was loaded")

// required are functions without which nothing can be read; of each line one
// is enough: newer versions of a function first.
var required = [][]string{
	{"nvmlInit_v2", "nvmlInit"},
	{"nvmlShutdown"},
	{"nvmlErrorString"},
	{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
	{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	{"nvmlDeviceGetUUID"},
	{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"},
}

// library is the loaded library and which functions it has.
type library struct {
	nvml.Interface
	has map[string]bool
}

// open loads and initialises. It may be called again and again.
func open(path string) (*library, error) {
	if path == "" {
		path = defaultLibrary
	}
	if err := checkRequired(path); err != nil {
		return nil, err
	}
	lib := &library{Interface: nvml.New(nvml.WithLibraryPath(path)), has: make(map[string]bool)}
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("initialising %s: %w", path, failure(ret))
	}
	return lib, nil
}

func checkRequired(path string) error {
	handle := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := handle.Open(); err != nil {
		return fmt.Errorf("loading NVML (is the NVIDIA driver installed?): %w", err)
	}
	defer func() { _ = handle.Close() }() // what is loaded twice is unloaded once
	for _, names := range required {
		found := false
		for _, name := range names {
			found = found || handle.Lookup(name) == nil
		}
		if !found {
			return fmt.Errorf("%s lacks the function %s: it is too old, or no NVML", path, strings.Join(names, " or "))
		}
	}
	return nil
}

// can says whether the library has any of these functions.
func (l *library) can(names ...string) bool {
	for _, name := range names {
		found, known := l.has[name]
		if !known {
			found = l.Extensions().LookupSymbol(name) == nil
			l.has[name] = found
		}
		if found {
			return true
		}
	}
	return false
}

// failure is a return value as an error, in NVML's own words.
func failure(ret nvml.Return) error {
	return &returnError{code: ret, text: nvml.ErrorString(ret)}
}

type returnError struct {
	code nvml.Return
	text string
}

func (e *returnError) Error() string { return fmt.Sprintf("NVML error %d: %s", int(e.code), e.text) }

// unsupported are answers that mean "this part or driver has no such value".
func unsupported(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_PERMISSION,
		nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return true
	}
	return false
}

// broken are answers that mean "this GPU does not work". ERROR_UNKNOWN is not
// among them: parts with unified memory answer it to harmless questions.
func broken(ret nvml.Return) bool {
	return ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED
}
