// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

func TestTheGroupsThatTheDevicePluginMakesOfAShape(t *testing.T) {
	gpus := func(kind string, count int) plan.Devices {
		return plan.Devices{Type: plan.GPU, Model: "A100", Count: count, Kind: kind}
	}
	slice := func(kind string, count, of int) plan.Devices {
		return plan.Devices{Type: plan.Slice, Model: "A100", Count: count, Of: of, Kind: kind}
	}
	for text, want := range map[string][]plan.Devices{
		"gpus = 8":                                      {gpus("spot 0", 8)},
		"gpus = 8\n island = 4":                         {gpus("spot 0", 4), gpus("spot 0", 4)},
		"gpus = 2\n slices = 3":                         {slice("spot 0", 2, 3), slice("spot 0", 2, 3), slice("spot 0", 2, 3)},
		"gpus = 4\n slices = 2\n island = 2":            {slice("spot 0", 2, 2), slice("spot 0", 2, 2), slice("spot 0", 2, 2), slice("spot 0", 2, 2)},
		"gpus = 2\n slices = 3\n allow_same_gpu = true": {slice("spot 0", 6, 3)},
		"gpus = 6\n also {\n gpus = 1\n slices = 2\n model = \"A100\"\n }": {gpus("spot 0", 6), slice("spot 1", 1, 2), slice("spot 1", 1, 2)},
	} {
		f, err := readText(t, strings.Replace(good, "gpus = 8", "model = \"A100\"\n "+text, 1))
		must.NoError(t, err, must.Sprint(text))
		shape := f.Pools[0].Plan().Shape
		must.Eq(t, want, shape.Devices, must.Sprint(text))
		whole := 0
		for _, d := range want {
			if d.Type == plan.GPU {
				whole += d.Count
			}
		}
		must.Eq(t, whole, shape.GPUs, must.Sprint("slices are no GPUs"))
	}
}

func TestEachFaultOfAShapeIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		"gpus = 1025":                                `pool "spot": shape.gpus: 1025; allowed are 1 to 1024`,
		"gpus = 8\n slices = 1":                      `shape.slices: 1; allowed are 0 (GPUs are whole) and 2 to 64`,
		"gpus = 8\n slices = 65":                     `shape.slices: 65; allowed`,
		"gpus = 8\n slices = -2":                     `shape.slices: -2; allowed`,
		"gpus = 8\n island = 3":                      `shape.island: 3; allowed are 0 (a model's GPUs are one group) and, from 2, what divides gpus, 8`,
		"gpus = 8\n island = 1":                      `shape.island: 1; allowed`,
		"gpus = 8\n island = 16":                     `shape.island: 16; allowed`,
		"gpus = 8\n island = -4":                     `shape.island: -4; allowed`,
		"gpus = 8\n cpu = -1":                        `shape.cpu and shape.memory: -1 and 0; allowed`,
		"gpus = 8\n allow_same_gpu = true":           `shape.allow_same_gpu: true; allowed is true only with slices`,
		"gpus = 8\n also {\n gpus = 0\n }":           `shape.also[0].gpus: 0; allowed are 1 to 1024`,
		"gpus = 8\n also {\n slices = 4\n }":         `"gpus" is required`,
		"gpus = 8\n also {\n gpus = 1\n cpu = 1\n }": `"cpu" is not expected here`,
	} {
		_, err := readText(t, strings.Replace(good, "gpus = 8", text, 1))
		must.ErrorContains(t, err, want, must.Sprint(text))
	}
}
