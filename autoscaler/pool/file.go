// SPDX-License-Identifier: MPL-2.0

// Package pool reads which pools of nodes there are, and makes them grow and shrink.
package pool

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2/hclsimple"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// File is a pools file, in HCL.
type File struct {
	Pools    []Definition `hcl:"pool,block"`
	Budget   *Budget      `hcl:"budget,block"`
	Curve    *Curve       `hcl:"curve,block"`
	Forecast *Forecast    `hcl:"forecast,block"`
}

// Definition is one pool of the file.
type Definition struct {
	Name string `hcl:"name,label"`
	// Kind is how nodes are made: one of kinds, or "target" where another
	// target plugin of the autoscaler does it.
	Kind      string  `hcl:"kind"`
	Lifecycle string  `hcl:"lifecycle,optional"`
	Price     float64 `hcl:"price,optional"`
	Min       int     `hcl:"min,optional"`
	Max       int     `hcl:"max"`
	IdleTime  string  `hcl:"idle_time,optional"`
	// Headroom is the share of the busy nodes that is kept free beside them.
	Headroom     float64 `hcl:"headroom,optional"`
	StartTimeout string  `hcl:"start_timeout,optional"`
	Select       Select  `hcl:"select,block"`
	Shape        Shape   `hcl:"shape,block"`
	// DownTimeout is how long a node that was ready may be out of contact.
	DownTimeout string `hcl:"down_timeout,optional"`
	// RetryAfter is how long nothing is bought here after a refusal or a node that did not come up.
	RetryAfter string `hcl:"retry_after,optional"`
	// Penalty is how much dearer, as a share, each interruption of the last
	// hours makes the pool look.
	Penalty     *float64     `hcl:"interruption_penalty,optional"`
	Billing     *Billing     `hcl:"billing,block"`
	Maintenance *Maintenance `hcl:"maintenance,block"`
	Power       *Power       `hcl:"power,block"`
	Fixed       *Fixed       `hcl:"fixed,block"`
	// Period is how often the maker of machines is asked what there is.
	Period  string   `hcl:"period,optional"`
	Local   *Local   `hcl:"local,block"`
	Command *Command `hcl:"command,block"`
	AWS     *AWS     `hcl:"aws,block"`

	idle, start, down, retry, period time.Duration
}

// kinds are those whose nodes the target gpu-pool makes.
var kinds = []string{"local", "command", "aws-asg", "aws-ec2-fleet"}

// Select says which of Nomad's nodes are the pool's.
type Select struct {
	NodePool   string `hcl:"node_pool,optional"`
	NodeClass  string `hcl:"node_class,optional"`
	Datacenter string `hcl:"datacenter,optional"`
}

// Local is a pool of Nomad clients on this machine.
type Local struct {
	// Dir keeps what is known of the nodes.
	Dir   string `hcl:"dir"`
	Slots []Slot `hcl:"slot,block"`
}

// Slot is a place for one node; its label is the node's name in Nomad.
type Slot struct {
	Name string `hcl:"name,label"`
	// Command starts the client; no shell is between.
	Command []string `hcl:"command"`
	// DataDir is the client's, removed when the node goes.
	DataDir string `hcl:"data_dir,optional"`
}

// New is the pool that a definition describes; nil where another target makes its nodes.
func New(d *Definition, client *api.Client, logger hclog.Logger) (Pool, error) {
	switch d.Kind {
	case "local":
		return NewLocal(d, client, logger), nil
	case "command":
		return NewMachines(d, commandMaker{d.Name, d.Command}, d.Command.Dir, client, logger), nil
	case "aws-asg", "aws-ec2-fleet":
		maker, err := newAWS(d)
		if err != nil {
			return nil, err
		}
		return NewMachines(d, maker, d.AWS.Dir, client, logger), nil
	}
	return nil, nil
}

// ReadFile reads and checks a pools file. Errors name the file and line, or the field.
func ReadFile(path string) (*File, error) {
	text, err := readBounded(path)
	if err != nil {
		return nil, fmt.Errorf("pools file: %w", err)
	}
	var f File
	if err := hclsimple.Decode(path, text, nil, &f); err != nil {
		return nil, fmt.Errorf("pools file: %w", err)
	}
	var errs []error
	seen := map[string]bool{}
	for i := range f.Pools {
		p := &f.Pools[i]
		if seen[p.Name] {
			errs = append(errs, fmt.Errorf("pool %q: it is defined twice", p.Name))
		}
		seen[p.Name] = true
		if err := p.validate(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(f.Pools) == 0 {
		errs = append(errs, errors.New("no pool is defined; allowed is one pool block or more"))
	}
	errs = append(errs, f.validateBudget(), f.Curve.validate(), f.validateApart(), f.Forecast.validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("pools file %s: %w", path, err)
	}
	return &f, nil
}

func (p *Definition) validate() error {
	var errs []error
	wrong := func(field string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("pool %q: %s: %v; allowed %s", p.Name, field, value, allowed))
	}
	if !(p.Headroom >= 0 && p.Headroom <= 1) {
		wrong("headroom", p.Headroom, "are 0 (none) to 1, such as 0.05")
	}
	if p.Kind != "target" && !slices.Contains(kinds, p.Kind) {
		wrong("kind", fmt.Sprintf("%q", p.Kind), fmt.Sprintf("are %q", append(slices.Clone(kinds), "target")))
	}
	if len(p.Name) > maxName || !poolName.MatchString(p.Name) {
		wrong("name", fmt.Sprintf("%.64q", p.Name), fmt.Sprintf("are 1 to %d letters, digits, dots, - and _, with no dot first", maxName))
	}
	if p.Lifecycle == "" {
		p.Lifecycle = plan.OnDemand
	}
	if p.Lifecycle != plan.Spot && p.Lifecycle != plan.OnDemand {
		wrong("lifecycle", fmt.Sprintf("%q", p.Lifecycle), `are "spot" and "on-demand"`)
	}
	if !(p.Price >= 0) || math.IsInf(p.Price, 0) {
		wrong("price", p.Price, "are 0 and more, for a node and hour")
	}
	if p.Min < 0 || p.Max < p.Min || p.Max > maxMachines {
		wrong("min and max", fmt.Sprintf("%d and %d", p.Min, p.Max), fmt.Sprintf("are 0 to %d, and max not below min", maxMachines))
	}
	errs = append(errs, p.Shape.validate(p.Name)...)
	if p.Select == (Select{}) {
		wrong("select", "empty", "is at least one of node_pool, node_class, datacenter")
	}
	p.times(wrong)
	if v := p.Penalty; v != nil && !(*v >= 0 && *v <= 1) {
		wrong("interruption_penalty", *v, "are 0 (none) to 1, such as 0.02")
	}
	errs = append(errs, p.Billing.validate(p.Name)...)
	errs = append(errs, p.Maintenance.validate(p.Name, p.Kind)...)
	errs = append(errs, p.validateOwnership()...)
	errs = append(errs, p.validateMaker()...)
	return errors.Join(errs...)
}

// validateMaker checks the block of the pool's kind, and that there is no other.
func (p *Definition) validateMaker() (errs []error) {
	switch p.Kind {
	case "local":
		errs = p.validateLocal()
	case "command":
		errs = p.Command.validate(p.Name)
	case "aws-asg", "aws-ec2-fleet":
		errs = p.AWS.validate(p.Name, p.Kind)
	}
	for _, b := range []struct {
		name  string
		there bool
		kinds []string
	}{{"local", p.Local != nil, kinds[:1]}, {"command", p.Command != nil, kinds[1:2]}, {"aws", p.AWS != nil, kinds[2:]}} {
		if b.there && !slices.Contains(b.kinds, p.Kind) {
			errs = append(errs, fmt.Errorf("pool %q: %s: a block; allowed is one only with kind %s", p.Name, b.name, strings.Trim(fmt.Sprintf("%q", b.kinds), "[]")))
		}
	}
	return errs
}

func (p *Definition) validateLocal() (errs []error) {
	if p.Local == nil {
		return []error{fmt.Errorf(`pool %q: local: no block; kind "local" needs one`, p.Name)}
	}
	if !filepath.IsAbs(p.Local.Dir) {
		errs = append(errs, fmt.Errorf("pool %q: local.dir: %q; allowed is an absolute path", p.Name, p.Local.Dir))
	}
	if len(p.Local.Slots) < p.Max {
		errs = append(errs, fmt.Errorf("pool %q: local: %d slots; allowed are as many as max, %d, or more", p.Name, len(p.Local.Slots), p.Max))
	}
	seen := map[string]bool{}
	for _, s := range p.Local.Slots {
		if s.Name == "" || filepath.Base(s.Name) != s.Name || seen[s.Name] {
			errs = append(errs, fmt.Errorf("pool %q: slot %q; allowed are different names without a slash", p.Name, s.Name))
		}
		seen[s.Name] = true
		if len(s.Command) == 0 {
			errs = append(errs, fmt.Errorf("pool %q: slot %q: command: empty; allowed is a program with its arguments", p.Name, s.Name))
		}
		if s.DataDir != "" && !filepath.IsAbs(s.DataDir) {
			errs = append(errs, fmt.Errorf("pool %q: slot %q: data_dir: %q; allowed is an absolute path", p.Name, s.Name, s.DataDir))
		}
	}
	return errs
}

// Plan is the pool as the planner takes it.
func (p *Definition) Plan() plan.Pool {
	pool := plan.Pool{Name: p.Name, Lifecycle: p.Lifecycle, Price: p.Price, Min: p.Min, Max: p.Max, Shape: p.shape(), IdleTime: p.idle, Headroom: p.Headroom,
		Retry: p.retry, Penalty: defaultPenalty, NoDrain: p.Kind == "target",
		Where: plan.Where{NodePool: p.Select.NodePool, Class: p.Select.NodeClass, Datacenter: p.Select.Datacenter}}
	if p.Penalty != nil {
		pool.Penalty = *p.Penalty
	}
	if b := p.Billing; b != nil {
		pool.Increment, pool.Minimum, pool.Margin = b.increment, b.minimum, b.margin
	}
	return pool
}

// defaultPenalty is what the replay of recorded spot zones is made with.
const defaultPenalty = 0.02

// Patience is how long a node may take to be ready, and how long the pool rests
// when one was not.
func (p *Definition) Patience() (start, rest time.Duration) { return p.start, p.retry }

// Find returns a pool by its name.
func (f *File) Find(name string) (*Definition, error) {
	var names []string
	for i := range f.Pools {
		if f.Pools[i].Name == name {
			return &f.Pools[i], nil
		}
		names = append(names, f.Pools[i].Name)
	}
	return nil, fmt.Errorf("pool: %q; allowed are %q", name, names)
}
