// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"fmt"
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
	f, err = readText(t, strings.Replace(good, "max       = 1", `max = 1
  retry_after          = "3m"
  interruption_penalty = 0.1
  billing {
    increment = "1h"
    minimum   = "2h"
    margin    = "5m"
  }`, 1)+"budget {\n  namespaces = { research = 50 }\n}\n")
	must.NoError(t, err)
	planned = f.Pools[0].Plan()
	must.Eq(t, []time.Duration{time.Hour, 2 * time.Hour, 5 * time.Minute, 3 * time.Minute}, []time.Duration{planned.Increment, planned.Minimum, planned.Margin, planned.Retry})
	must.Eq(t, 0.1, planned.Penalty)
	must.False(t, planned.NoDrain)
	must.Eq(t, plan.Budget{Namespaces: map[string]float64{"research": 50}}, f.Spend())
	_, err = f.Find("other")
	must.ErrorContains(t, err, `pool: "other"; allowed are ["spot"]`)
}

// window is a maintenance block.
func window(start, duration, want string) string {
	return fmt.Sprintf("  maintenance {\n    start = %q\n    duration = %q\n    want = { %s }\n  }\n", start, duration, want)
}

func TestEachFaultOfAFileIsNamed(t *testing.T) {
	cases := map[string]struct{ old, new, want string }{
		"syntax, with its line":           {`price     = 12.5`, `price = = 1`, "pools.hcl:5"},
		"an unknown key":                  {`price     = 12.5`, `cost = 1`, "pools.hcl:5"},
		"kind":                            {`"local"`, `"gce"`, `kind: "gce"; allowed are ["local" "command" "aws-asg" "aws-ec2-fleet" "target"]`},
		"lifecycle":                       {`"spot"` + "\n  price", `"cheap"` + "\n  price", `lifecycle: "cheap"`},
		"price":                           {`12.5`, `-1`, "price: -1"},
		"max below min":                   {`max       = 1`, "max = 1\n  min = 2", "min and max: 2 and 1"},
		"max beyond all":                  {`max       = 1`, "max = 10001", "min and max: 0 and 10001; allowed are 0 to 10000"},
		"GPUs beyond all":                 {`gpus = 8`, `gpus = 4000000000`, "shape.gpus: 4000000000; allowed are 1 to 1024"},
		"no time to be down":              {`max       = 1`, "max = 1\n  down_timeout = \"0s\"", `down_timeout: "0s"; allowed is a duration from`},
		"headroom":                        {`max       = 1`, "max = 1\n  headroom = 1.5", "headroom: 1.5; allowed are 0 (none) to 1"},
		"a budget of nothing":             {`pool "spot" {`, "budget {\n  per_hour = 0\n}\npool \"spot\" {", "budget: per_hour: 0; allowed is more than 0"},
		"a budget that the minima exceed": {"\n" + `pool "spot" {` + "\n  kind", "\nbudget {\n  per_hour = 12\n}\npool \"spot\" {\n  min = 1\n  kind", "budget: per_hour: 12; allowed is more than 0, and not less than the pools' minima cost, 12.5"},
		"an empty budget":                 {"\n" + `pool "spot" {` + "\n  kind", "\nbudget {}\npool \"spot\" {\n  kind", "budget: empty; allowed are per_hour, namespaces or both"},
		"a namespace's budget":            {"\n" + `pool "spot" {` + "\n  kind", "\nbudget {\n  namespaces = { a = -1 }\n}\npool \"spot\" {\n  kind", `budget: namespaces: "a" = -1; allowed is`},
		"a billing increment":             {`max       = 1`, "max = 1\n  billing {\n    increment = \"0s\"\n  }", `billing.increment: "0s"; allowed is a duration above 0`},
		"a margin over the increment":     {`max       = 1`, "max = 1\n  billing {\n    increment = \"1m\"\n    margin = \"1h\"\n  }", `billing.margin: "1h"; allowed is not more than billing.increment, "1m"`},
		"a penalty":                       {`max       = 1`, "max = 1\n  interruption_penalty = 2", "interruption_penalty: 2; allowed are 0 (none) to 1"},
		"a window's start":                {`max       = 1`, "max = 1\n" + window("SAT 02:00", "4h", `"meta.image" = "2"`), `maintenance.start: "SAT 02:00"; allowed is a cron expression`},
		"a window's duration":             {`max       = 1`, "max = 1\n" + window("0 2 * * SAT", "4", `"meta.image" = "2"`), `maintenance.duration: "4"; allowed is a duration`},
		"an attribute that is none":       {`max       = 1`, "max = 1\n" + window("0 2 * * SAT", "4h", `"image" = "2"`), `maintenance.want: "image"; allowed are attr.NAME, meta.NAME and device.NAME`},
		"nothing that is wanted":          {`max       = 1`, "max = 1\n" + window("0 2 * * SAT", "4h", ``), `maintenance.want: empty`},
		"a curve of too few hours":        {"\n" + `pool "spot" {` + "\n  kind", "\ncurve {\n  price = [1, 2]\n}\npool \"spot\" {\n  kind", "curve: price: 2 values; allowed are 24"},
		"a curve of nothing":              {"\n" + `pool "spot" {` + "\n  kind", "\ncurve {}\npool \"spot\" {\n  kind", "curve: price, carbon and file: none"},
		"a curve's file":                  {"\n" + `pool "spot" {` + "\n  kind", "\ncurve {\n  file = \"curve.csv\"\n}\npool \"spot\" {\n  kind", `curve: file: "curve.csv"; allowed is an absolute path`},
		"idle time":                       {`"5m"`, `"soon"`, `idle_time: "soon"`},
		"a maximum of no bound":           {`max       = 1`, "max = 9000000000000000000", "min and max: 0 and 9000000000000000000; allowed are 0 to 10000"},
		"no time to come up":              {`max       = 1`, "max = 1\n  start_timeout = \"0s\"", `start_timeout: "0s"; allowed is a duration from 5s to 24h0m0s, such as 10m0s`},
		"time to come up without end":     {`max       = 1`, "max = 1\n  start_timeout = \"100000h\"", `start_timeout: "100000h"`},
		"a period of a day":               {`max       = 1`, "max = 1\n  period = \"24h\"", `period: "24h"; allowed is a duration from 1s to 10m0s`},
		"a period of nothing":             {`max       = 1`, "max = 1\n  period = \"1ns\"", `period: "1ns"`},
		"a rest without end":              {`max       = 1`, "max = 1\n  retry_after = \"9000h\"", `retry_after: "9000h"; allowed is a duration from 0s to 24h0m0s`},
		"billing of nothing":              {`max       = 1`, "max = 1\n  billing {}", `billing: neither increment nor minimum is set`},
		"a name of two lines":             {`pool "spot"`, `pool "a\nb"`, `name: "a\nb"; allowed are 1 to 128 letters`},
		"a long name":                     {`pool "spot"`, `pool "` + strings.Repeat("x", 300) + `"`, `name: "xxx`},
		"a name that begins with a dot":   {`pool "spot"`, `pool ".spot"`, `name: ".spot"`},
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
	_, err = ReadFile("/no/such/pools.hcl")
	must.EqError(t, err, "pools file: open /no/such/pools.hcl: no such file or directory")
	_, err = readText(t, "")
	must.ErrorContains(t, err, "no pool is defined")
	_, err = ReadFile("/dev/zero")
	must.EqError(t, err, "pools file: read /dev/zero: more than 4194304 bytes; allowed are 4194304")
}

func TestNoNodeMayBeOfTwoPools(t *testing.T) {
	second := strings.NewReplacer(`pool "spot"`, `pool "more"`, `spot-1`, `more-1`)
	of := func(selects string) string {
		return strings.Replace(good, `node_pool = "gpu"`, selects, 1)
	}
	for name, c := range map[string]struct{ one, two, want string }{
		"the same":         {`node_pool = "gpu"`, `node_pool = "gpu"`, `pools "spot" and "more": select: both are the same, { node_pool = "gpu" }; allowed is what no two pools share`},
		"a part of it":     {`node_pool = "gpu"`, "node_pool = \"gpu\"\nnode_class = \"x\"", `select: all nodes of the second, { node_pool = "gpu", node_class = "x" }, are of the first too, { node_pool = "gpu" }`},
		"more than it":     {"datacenter = \"dc1\"\nnode_class = \"x\"", `node_class = "x"`, `select: all nodes of the first, { node_class = "x", datacenter = "dc1" }, are of the second too, { node_class = "x" }`},
		"other nodes":      {"node_pool = \"gpu\"\nnode_class = \"x\"", "node_pool = \"gpu\"\nnode_class = \"y\"", ""},
		"perhaps the same": {`node_pool = "gpu"`, `node_class = "x"`, ""},
	} {
		_, err := readText(t, of(c.one)+second.Replace(of(c.two)))
		if c.want == "" {
			must.NoError(t, err, must.Sprint(name))
			continue
		}
		must.ErrorContains(t, err, c.want, must.Sprint(name))
	}
	other := strings.Replace(good, `node_pool = "gpu"`, `node_class = "x"`, 1)
	_, err := readText(t, good+strings.Replace(other, `pool "spot"`, `pool "more"`, 1))
	must.ErrorContains(t, err, `pools "spot" and "more": slot "spot-1"; allowed is`)
	_, err = readText(t, good+strings.NewReplacer(`pool "spot"`, `pool "more"`, `slot "spot-1"`, `slot "more-1"`).Replace(other))
	must.ErrorContains(t, err, `slots "spot-1" and "more-1": data_dir: "/var/lib/spot-1"`)
	for _, region := range []string{"us-east-1", "us-west-2"} {
		group := func(name, class, region string) string {
			return fmt.Sprintf("pool %q {\n  kind = \"aws-asg\"\n  max = 1\n  select {\n    node_class = %q\n  }\n  shape {\n    gpus = 8\n  }\n  aws {\n    dir = \"/d\"\n    region = %q\n    group = \"g\"\n  }\n}\n", name, class, region)
		}
		_, err = readText(t, group("a", "a", "us-east-1")+group("b", "b", region))
		if region == "us-west-2" {
			must.NoError(t, err)
		} else {
			must.ErrorContains(t, err, `pools "a" and "b": aws: group "g"`)
		}
	}
}

func TestEachPoolsFileOfTheReferenceIsLoaded(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	must.NoError(t, err)
	loaded := 0
	for i, block := range strings.Split(string(text), "```hcl\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if !strings.HasPrefix(block, "# pools.hcl") {
			continue
		}
		_, err := readText(t, block)
		must.NoError(t, err, must.Sprintf("block %d", i+1))
		loaded++
	}
	must.Positive(t, loaded)
}

func FuzzPoolsFile(f *testing.F) {
	f.Add(good)
	f.Add("budget {\n  namespaces = { a = 1 }\n}\ncurve {\n  price = [1]\n}\n" + strings.Replace(good, "max       = 1", "max = 1\n"+window("0 2 * * SAT", "4h", `"meta.image" = "2"`), 1))
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "pools.hcl")
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		file, err := ReadFile(path)
		if err != nil {
			return
		}
		budget := file.Spend().PerHour
		least := 0.0
		for i := range file.Pools {
			p := file.Pools[i].Plan()
			must.True(t, p.Min >= 0 && p.Max >= p.Min && p.Price >= 0 && p.Shape.GPUs > 0 && p.IdleTime >= 0 && p.Retry >= 0 && p.Increment >= 0 && p.Minimum >= 0)
			least += float64(p.Min) * p.Price
			if w := file.Pools[i].Maintenance.Open(time.Unix(1e9, 0)); w != nil {
				must.Positive(t, w.AtOnce)
			}
		}
		must.True(t, budget == 0 || budget >= least)
	})
}
