// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

const good = `
pool "spot" {
  kind      = "local"
  lifecycle = "spot"
  price     = 12.5
  max       = 1
  idle_time = "5m"
  select {
    node_pool = "gpu"
  }
  shape {
    gpus = 8
  }
  local {
    dir = "/var/lib/pool"
    slot "spot-1" {
      command  = ["nomad", "agent"]
      data_dir = "/var/lib/spot-1"
    }
  }
}
`

func readText(t *testing.T, text string) (*File, error) {
	path := filepath.Join(t.TempDir(), "pools.hcl")
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return ReadFile(path)
}

func TestAGoodFileIsRead(t *testing.T) {
	f, err := readText(t, good)
	must.NoError(t, err)
	p, err := f.Find("spot")
	must.NoError(t, err)
	planned := p.Plan()
	must.Eq(t, 5*time.Minute, planned.IdleTime)
	must.Eq(t, 8, planned.Shape.GPUs)
	must.Greater(t, 1<<20, planned.Shape.Memory, must.Sprint("memory that is left out is no limit"))
	must.Eq(t, plan.Budget{}, f.Spend(), must.Sprint("no budget is no limit"))
	f, err = readText(t, "budget {\n  per_hour = 200\n}"+strings.Replace(good, "max       = 1", "max = 1\n  headroom = 0.05", 1))
	must.NoError(t, err)
	must.Eq(t, plan.Budget{PerHour: 200}, f.Spend())
	must.Eq(t, 0.05, f.Pools[0].Plan().Headroom)
	_, err = f.Find("other")
	must.ErrorContains(t, err, `pool: "other"; allowed are ["spot"]`)
}

func TestEachFaultOfAFileIsNamed(t *testing.T) {
	cases := map[string]struct{ old, new, want string }{
		"syntax, with its line":           {`price     = 12.5`, `price = = 1`, "pools.hcl:5"},
		"an unknown key":                  {`price     = 12.5`, `cost = 1`, "pools.hcl:5"},
		"kind":                            {`"local"`, `"gce"`, `kind: "gce"; allowed are ["local" "command" "aws-asg" "aws-ec2-fleet" "target"]`},
		"lifecycle":                       {`"spot"` + "\n  price", `"cheap"` + "\n  price", `lifecycle: "cheap"`},
		"price":                           {`12.5`, `-1`, "price: -1"},
		"max below min":                   {`max       = 1`, "max = 1\n  min = 2", "min and max: 2 and 1"},
		"headroom":                        {`max       = 1`, "max = 1\n  headroom = 1.5", "headroom: 1.5; allowed are 0 (none) to 1"},
		"a budget of nothing":             {`pool "spot" {`, "budget {\n  per_hour = 0\n}\npool \"spot\" {", "budget: per_hour: 0; allowed is more than 0"},
		"a budget that the minima exceed": {"\n" + `pool "spot" {` + "\n  kind", "\nbudget {\n  per_hour = 12\n}\npool \"spot\" {\n  min = 1\n  kind", "budget: per_hour: 12; allowed is more than 0, and not less than the pools' minima cost, 12.5"},
		"idle time":                       {`"5m"`, `"soon"`, `idle_time: "soon"`},
		"no selection":                    {`node_pool = "gpu"`, ``, "select: empty"},
		"no GPUs":                         {`gpus = 8`, `gpus = 0`, "shape.gpus: 0"},
		"too few slots":                   {`max       = 1`, `max = 2`, "1 slots; allowed are as many as max, 2"},
		"relative directory":              {`"/var/lib/pool"`, `"pool"`, `local.dir: "pool"; allowed is an absolute path`},
		"a slot with a slash":             {`slot "spot-1"`, `slot "../x"`, `slot "../x"`},
		"a slot without command":          {`["nomad", "agent"]`, `[]`, "command: empty"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			must.StrContains(t, good, c.old)
			_, err := readText(t, strings.Replace(good, c.old, c.new, 1))
			must.ErrorContains(t, err, c.want)
		})
	}
	_, err := readText(t, good+good)
	must.ErrorContains(t, err, `pool "spot": it is defined twice`)
	_, err = readText(t, "")
	must.ErrorContains(t, err, "no pool is defined")
}
