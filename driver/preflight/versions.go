// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// Versions are a node's, by the component's name.
type Versions map[string]string

const (
	maxComponents = 16
	maxVersion    = 64
)

var plainVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+~-]*$`)

// clean keeps what can be a version of something: the rest of what a peer or
// a file says is left out.
func (v Versions) clean() Versions {
	kept := Versions{}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if len(kept) < maxComponents && len(name) <= maxVersion && len(v[name]) <= maxVersion && plainVersion.MatchString(name) && plainVersion.MatchString(v[name]) {
			kept[name] = v[name]
		}
	}
	return kept
}

// modules are kernel modules whose versions must be the same on all nodes:
// NVIDIA's driver brings its CUDA driver library along, and RDMA between two
// releases of the NICs' driver fails in ways that are hard to read.
var modules = map[string]string{"nvidia": "NVIDIA driver", "mlx5_core": "mlx5_core", "efa": "efa"}

// LocalVersions are those of the node's modules below sysfs, usually "/sys".
// The modules of the kernel itself have no version and are left out.
func LocalVersions(sysfs string) Versions {
	found := Versions{}
	for module, component := range modules {
		if text, err := readSmall(filepath.Join(sysfs, "module", module, "version")); err == nil {
			found[strings.ReplaceAll(component, " ", "-")] = text
		}
	}
	return found.clean()
}

// readSmall reads a one-line file of the kernel's.
func readSmall(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 4096))
	return strings.TrimSpace(string(data)), err
}

// compareVersions names each component that differs, with all ranks on each
// side; the side with fewer ranks comes last. A component that a node does
// not know is not compared.
func compareVersions(members []gang.Member, known map[int]Versions) error {
	byComponent := map[string]map[string][]int{}
	for rank, versions := range known {
		for component, version := range versions {
			if byComponent[component] == nil {
				byComponent[component] = map[string][]int{}
			}
			byComponent[component][version] = append(byComponent[component][version], rank)
		}
	}
	var errs []error
	for _, component := range slices.Sorted(maps.Keys(byComponent)) {
		if sides := byComponent[component]; len(sides) > 1 {
			errs = append(errs, fmt.Errorf("versions of %s differ: %s", component, describeSides(members, sides)))
		}
	}
	return errors.Join(errs...)
}

func describeSides(members []gang.Member, sides map[string][]int) string {
	versions := slices.SortedFunc(maps.Keys(sides), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(sides[b]), len(sides[a])), cmp.Compare(a, b))
	})
	var parts []string
	for _, version := range versions {
		ranks := sides[version]
		slices.Sort(ranks)
		if len(ranks) == 1 {
			parts = append(parts, fmt.Sprintf("%s on %s", version, describe(members, ranks[0])))
		} else {
			parts = append(parts, fmt.Sprintf("%s on ranks %s", version, rankList(ranks)))
		}
	}
	return strings.Join(parts, ", ")
}

// Releases tells where the members' drivers are of different releases. That
// is no error: the releases can meet in one gang while a cluster is upgraded.
func Releases(members []gang.Member) string {
	sides := map[string][]int{}
	for rank, m := range members {
		sides[m.Version] = append(sides[m.Version], rank)
	}
	if len(sides) < 2 {
		return ""
	}
	return "releases of nomad-driver-nccl differ: " + describeSides(members, sides)
}

// describe names a member for people.
func describe(members []gang.Member, rank int) string {
	m := members[rank]
	return fmt.Sprintf("rank %d on %s (%s)", rank, m.Node, m.Address)
}

// rankList writes ascending ranks as "0-6, 9".
func rankList(ranks []int) string {
	var parts []string
	for i := 0; i < len(ranks); {
		end := i
		for end+1 < len(ranks) && ranks[end+1] == ranks[end]+1 {
			end++
		}
		if end > i {
			parts = append(parts, fmt.Sprintf("%d-%d", ranks[i], ranks[end]))
		} else {
			parts = append(parts, fmt.Sprint(ranks[i]))
		}
		i = end + 1
	}
	return strings.Join(parts, ", ")
}
