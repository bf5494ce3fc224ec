// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/progress"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// progressSpec is a task's progress block. Fractions are texts in it, as in preflightSpec.
var progressSpec = hclspec.NewBlock("progress", false, hclspec.NewObject(map[string]*hclspec.Spec{
	"file":           withDefault("file", "string", `"progress"`),
	"stragglers":     withDefault("stragglers", "bool", "false"),
	"ratio":          withDefault("ratio", "string", `"1.5"`),
	"hang":           withDefault("hang", "string", `"both"`),
	"factor":         withDefault("factor", "string", `"10"`),
	"floor":          withDefault("floor", "string", `"5m"`),
	"first_step":     withDefault("first_step", "string", `"0s"`),
	"stacks":         attr("stacks", "list(string)"),
	"stacks_timeout": withDefault("stacks_timeout", "string", `"30s"`),
}))

// ProgressConfig is the decoded progressSpec; without a block it is all empty.
type ProgressConfig struct {
	File          string   `codec:"file"`
	Stragglers    bool     `codec:"stragglers"`
	Ratio         string   `codec:"ratio"`
	Hang          string   `codec:"hang"`
	Factor        string   `codec:"factor"`
	Floor         string   `codec:"floor"`
	FirstStep     string   `codec:"first_step"`
	Stacks        []string `codec:"stacks"`
	StacksTimeout string   `codec:"stacks_timeout"`
}

// progressSettings are a ProgressConfig with its values read.
type progressSettings struct {
	file       string
	stragglers bool
	ratio      float64
	off        bool
	rule       progress.Rule
	stacks     progress.Stacks
}

var plainFile = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// read returns nil where there is no block.
func (c ProgressConfig) read() (*progressSettings, error) {
	if c.File == "" && c.Hang == "" {
		return nil, nil
	}
	s := &progressSettings{file: c.File, stragglers: c.Stragglers, stacks: progress.Stacks{Command: c.Stacks}}
	var errs []error
	if !plainFile.MatchString(c.File) {
		errs = append(errs, fmt.Errorf("progress.file: %q; allowed is a file's name in the task's local directory, of letters, digits, dots, dashes and underscores", c.File))
	}
	var err error
	if s.ratio, err = fraction("progress.ratio", c.Ratio); err == nil && !(s.ratio > 1 && s.ratio <= 100) {
		err = fmt.Errorf("progress.ratio: %s; allowed are more than 1 to 100", c.Ratio)
	}
	errs = append(errs, err)
	switch c.Hang {
	case "both":
	case "progress":
		s.rule.Alone = true
	case "off":
		s.off = true
	default:
		errs = append(errs, fmt.Errorf(`progress.hang: %q; allowed are "both" (stopped progress and another sign), "progress" (stopped progress alone) and "off"`, c.Hang))
	}
	if s.rule.Factor, err = fraction("progress.factor", c.Factor); err == nil && !(s.rule.Factor >= 1 && s.rule.Factor <= 1e6) {
		err = fmt.Errorf("progress.factor: %s; allowed are 1 to 1000000", c.Factor)
	}
	errs = append(errs, err)
	s.rule.Floor, err = duration("progress.floor", c.Floor, time.Second)
	errs = append(errs, err)
	s.rule.First, err = duration("progress.first_step", c.FirstStep, 0)
	errs = append(errs, err)
	if s.stacks.Timeout, err = duration("progress.stacks_timeout", c.StacksTimeout, time.Second); err == nil && s.stacks.Timeout > time.Hour {
		err = fmt.Errorf("progress.stacks_timeout: %s; allowed are 1s to 1h", s.stacks.Timeout)
	}
	errs = append(errs, err)
	if len(c.Stacks) > 0 && c.Stacks[0] == "" {
		errs = append(errs, errors.New(`progress.stacks: the first word is ""; allowed is a path, or a name in the driver's PATH`))
	}
	return s, errors.Join(errs...)
}

// follower watches the progress of one task's generations.
type follower struct {
	*progressSettings
	files progress.Files
	// path is GANG_PROGRESS_FILE.
	path   string
	ras    int // NCCL's RAS port, 0: none
	gpus   []string
	stderr string
	board  progress.Board // nil: no stragglers wanted
	report func(kind, text string)
	every  time.Duration // 0: the usual
}

// followerOf is nil where the task has no progress block.
func (d *Driver) followerOf(cfg *drivers.TaskConfig, s *progressSettings, k gang.Key, slots, ras int, gpus []string) *follower {
	if s == nil {
		return nil
	}
	dir := cfg.TaskDir()
	f := &follower{progressSettings: s, path: filepath.Join(dir.LocalDir, s.file), ras: ras, gpus: gpus, stderr: cfg.StderrPath,
		files:  progress.Files{Dir: dir.Dir, Name: filepath.Join(filepath.Base(dir.LocalDir), s.file), Slots: slots},
		report: func(kind, text string) { d.emit(cfg, kind, text) }}
	if s.stragglers {
		f.board = consul.NewBoard(d.consul, d.settings.consul.Prefix, k, cfg.AllocID)
	}
	return f
}

// placeFile keeps the member's place for a driver that comes back.
const placeFile = "place.json"

// prepare takes out what an earlier generation wrote, and keeps the place in dir.
func (f *follower) prepare(a gang.Assignment, dir string) error {
	if err := f.files.Remove(); err != nil {
		return err
	}
	place := progress.Place{Generation: a.Generation, Rank: a.Rank, Members: len(a.Members), Node: a.Self().Node}
	for _, m := range a.Members[:a.Rank] {
		place.First += m.Slots
	}
	data, err := json.Marshal(place)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, placeFile), data, 0o600)
}

// follow returns why the training hangs, or "" once ctx has ended.
func (f *follower) follow(ctx context.Context, dir string, generation uint64, p runtime.Process, began time.Time) string {
	var place progress.Place
	data, err := os.ReadFile(filepath.Join(dir, placeFile))
	if err == nil {
		err = json.Unmarshal(data, &place)
	}
	if err == nil && place.Generation != generation {
		err = fmt.Errorf("%s is of generation %d, not %d", placeFile, place.Generation, generation)
	}
	if err != nil {
		f.report("Warning", fmt.Sprintf("progress is not watched: %v", err))
		return ""
	}
	w := progress.Watch{Place: place, Files: f.files, Rule: f.rule, Off: f.off, Board: f.board, Ratio: f.ratio, GPUs: f.gpus, Report: f.report, Every: f.every}
	if !f.off {
		w.Witnesses = f.witnesses(place, p)
	}
	return w.Run(ctx, began)
}

// witnesses are those there can be. NCCL's RAS answers for the whole job, so
// one member asks it. CPUs tell only where no GPU is waited for.
func (f *follower) witnesses(place progress.Place, p runtime.Process) []progress.Witness {
	var all []progress.Witness
	if f.ras != 0 && place.Rank == 0 {
		all = append(all, &progress.RAS{Address: "localhost:" + strconv.Itoa(f.ras)})
	}
	if smi, err := exec.LookPath("nvidia-smi"); err == nil && len(f.gpus) > 0 {
		return append(all, progress.PowerOf(smi, f.gpus))
	}
	return append(all, progress.CPUOf(func() (time.Duration, bool) {
		u, err := p.Usage()
		return u.User + u.System, err == nil && len(u.PIDs) > 0
	}))
}

// collect writes the processes' stacks into the task's stderr.
func (f *follower) collect(ctx context.Context, generation uint64, why string, p runtime.Process) {
	if len(f.stacks.Command) == 0 {
		return
	}
	f.report("Hang", fmt.Sprintf("Generation %d: %s; collecting stacks for up to %s", generation, why, f.stacks.Timeout))
	var pids []int
	if u, err := p.Usage(); err == nil {
		pids = slices.Sorted(slices.Values(u.PIDs))
	}
	// Nomad reads the pipe; where it does not, the stop must not wait.
	out, err := os.OpenFile(f.stderr, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		defer out.Close()
		out.SetWriteDeadline(time.Now().Add(f.stacks.Timeout + 5*time.Second))
		err = f.stacks.Collect(ctx, pids, out)
	}
	if err != nil {
		f.report("Warning", err.Error())
	}
}

// follow watches a running generation; one that hangs is stopped, and its
// exit says why.
func (r *runner) follow(ctx context.Context, generation uint64, p runtime.Process, began time.Time) {
	why := r.progress.follow(ctx, r.dir, generation, p, began)
	if why == "" {
		return
	}
	r.progress.collect(ctx, generation, why, p)
	r.mu.Lock()
	r.hang = why
	r.mu.Unlock()
	signal, grace := r.stopsWith()
	grace = min(grace, r.failureGrace)
	for ctx.Err() == nil {
		// Not under ctx, which ends with the process.
		if p.Stop(context.WithoutCancel(ctx), signal, grace) == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
		}
	}
}

// ended completes an exit by what the progress tells of the generation.
func (r *runner) ended(x gang.Exit) gang.Exit {
	if r.progress == nil {
		return x
	}
	x.Step, _ = r.progress.files.LastStep()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hang != "" {
		x.Err, x.Rank, r.hang = r.hang, nil, ""
	}
	return x
}
