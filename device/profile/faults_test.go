// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestLoadFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "faults.yaml")
	load := func(text string) ([]Fault, error) {
		must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return LoadFaults(file, 8)
	}
	none, err := LoadFaults(file, 8)
	must.NoError(t, err)
	must.Len(t, 0, none)
	none, err = load("# nothing\n")
	must.NoError(t, err)
	must.Len(t, 0, none)

	faults, err := load("faults:\n  - { gpu: 3, xids: [48, 79], epoch: a, nvlinks_down: 2 }\n  - { gpu: 0, lost: gone, remap_failed: true }\n")
	must.NoError(t, err)
	must.Eq(t, []Fault{{GPU: 3, Xids: []uint64{48, 79}, Epoch: "a", NVLinksDown: 2}, {GPU: 0, Lost: "gone", RemapFailed: true}}, faults)

	m, err := Load("dgx-h100")
	must.NoError(t, err)
	faulty := WithFaults(m, faults)
	must.EqOp(t, "gone", faulty.GPUs[0].Fault)
	must.EqOp(t, 16, faulty.GPUs[3].NVLinks)
	must.EqOp(t, "", m.GPUs[0].Fault)
	must.EqOp(t, 18, m.GPUs[3].NVLinks)

	for _, c := range []struct{ name, text, want string }{
		{"unknown key", "faults:\n  - { gpu: 3, xid: 48 }\n", `:2: unknown key "xid"; allowed here: epoch, gpu,`},
		{"no such GPU", "faults:\n  - { gpu: 8 }\n", ":2: faults[0].gpu: 8; allowed is 0 to 7"},
		{"GPU twice", "faults:\n  - { gpu: 1 }\n  - { gpu: 1 }\n", ":3: faults[1].gpu: 1 is listed earlier"},
		{"not a number", "faults:\n  - { gpu: one }\n", ":2: "},
		{"not YAML", "faults: [\n", ":1: "},
		{"two documents", "faults: []\n---\nfaults: []\n", "one YAML document"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := load(c.text)
			must.ErrorContains(t, err, file)
			must.ErrorContains(t, err, c.want)
		})
	}
	_, err = LoadFaults(t.TempDir(), 8)
	must.ErrorContains(t, err, "reading faults")
}
