// SPDX-License-Identifier: MPL-2.0

// Ring-allreduce trains a small model as one member of a gang with nothing but
// TCP: the same story as examples/pytorch-ddp for machines without PyTorch. It
// reads the variables that the task driver sets, prints one JSON object a line,
// and exits 0 only where its own checks hold.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type settings struct {
	steps, batch, checkpoint, report int
	pause                            time.Duration
}

func main() {
	var s settings
	flag.IntVar(&s.steps, "steps", 60, "steps to train")
	flag.IntVar(&s.batch, "batch", 64, "examples per rank and step")
	flag.IntVar(&s.checkpoint, "checkpoint", 10, "steps between checkpoints")
	flag.IntVar(&s.report, "report", 5, "steps between reports")
	seconds := flag.Float64("step-seconds", 0, "pause after each step, to stretch the run")
	flag.Parse()
	s.pause = time.Duration(*seconds * float64(time.Second))
	if err := run(s); err != nil {
		fmt.Fprintln(os.Stderr, "ring-allreduce:", err)
		os.Exit(1)
	}
}

// member is this process's place in the gang, from the environment.
type member struct {
	rank, world, generation int
	self, master, dir       string
}

func run(s settings) error {
	for name, v := range map[string]int{"steps": s.steps, "batch": s.batch, "checkpoint": s.checkpoint, "report": s.report} {
		if v < 1 {
			return fmt.Errorf("-%s: %d: allowed is 1 and more", name, v)
		}
	}
	m, err := fromEnvironment()
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	m.say("start", map[string]any{"world": m.world, "pid": os.Getpid(), "host": host, "node_rank": m.rank,
		"address": m.self, "master": m.master, "gpus": visibleGPUs()})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r, err := dialRing(ctx, m.rank, m.world, m.self, m.master)
	if err != nil {
		return err
	}
	defer r.close()
	if err := m.checkAllReduce(r); err != nil {
		return err
	}
	return m.train(s, r)
}

func fromEnvironment() (member, error) {
	var m member
	for name, p := range map[string]*int{"RANK": &m.rank, "WORLD_SIZE": &m.world, "GANG_GENERATION": &m.generation} {
		v, err := strconv.Atoi(os.Getenv(name))
		if err != nil {
			return m, fmt.Errorf("not started as a member of a gang: %s is %q, expected a whole number", name, os.Getenv(name))
		}
		*p = v
	}
	m.self, m.dir = os.Getenv("NODE_ADDR"), os.Getenv("GANG_CHECKPOINT_DIR")
	m.master = net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT"))
	return m, nil
}

func visibleGPUs() []string {
	return slices.DeleteFunc(strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ","), func(s string) bool { return s == "" })
}

// checkAllReduce sums (rank + 1) * [1, 2, 3, 4] over all ranks and compares with the closed form.
func (m member) checkAllReduce(r *ring) error {
	got, want := make([]float64, 4), make([]float64, 4)
	for i := range got {
		got[i] = float64((m.rank + 1) * (i + 1))
		want[i] = float64(m.world*(m.world+1)/2) * float64(i+1)
	}
	if err := r.sum(got); err != nil {
		return err
	}
	ok := slices.Equal(got, want)
	m.say("allreduce", map[string]any{"sum": got, "expected": want, "ok": ok})
	if !ok {
		return fmt.Errorf("all-reduce: got %v, expected %v", got, want)
	}
	return nil
}

func (m member) train(s settings, r *ring) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	model, err := load(m.dir)
	if err != nil {
		return err
	}
	if model.Step > 0 {
		m.say("resume", map[string]any{"step": model.Step})
	}
	for model.Step < s.steps {
		// The wish to stop and the step travel with the gradient: all ranks
		// leave the loop together, and ranks at different steps are noticed.
		sum := append(model.gradient(m.rank, s.batch), float64(len(signals)), float64(model.Step))
		if err := r.sum(sum); err != nil {
			return err
		}
		if sum[inputs+2] != float64(m.world*model.Step) {
			return fmt.Errorf("ranks are at different steps: this one at %d, the mean is %g; do all read the same %s?",
				model.Step, sum[inputs+2]/float64(m.world), m.dir)
		}
		stopping := sum[inputs+1] > 0
		model.apply(sum, m.world)
		if model.Step%s.report == 0 || model.Step == s.steps {
			m.say("step", map[string]any{"step": model.Step, "loss": model.Loss})
		}
		if m.dir != "" && m.rank == 0 && (model.Step%s.checkpoint == 0 || stopping) {
			if err := model.save(m.dir); err != nil {
				return err
			}
			m.say("checkpoint", map[string]any{"step": model.Step})
		}
		if stopping {
			m.say("stopped", map[string]any{"step": model.Step})
			return nil
		}
		time.Sleep(s.pause)
	}
	return m.result(model, r)
}

// result compares the digests of all ranks: each adds its own in its own place.
func (m member) result(model *state, r *ring) error {
	own := model.digest()
	all := make([]float64, len(own)*m.world)
	for i, b := range own {
		all[m.rank*len(own)+i] = float64(b)
	}
	if err := r.sum(all); err != nil {
		return err
	}
	equal := true
	for i, b := range all {
		equal = equal && b == float64(own[i%len(own)])
	}
	falls := model.Loss < model.FirstLoss
	m.say("result", map[string]any{"step": model.Step, "first_loss": model.FirstLoss, "last_loss": model.Loss,
		"digest": model.digestText(), "parameters_equal": equal, "loss_falls": falls, "ok": equal && falls})
	if !equal || !falls {
		return fmt.Errorf("parameters equal on all ranks: %t; loss from %g to %g", equal, model.FirstLoss, model.Loss)
	}
	return nil
}

// say prints one event as a line of JSON; one write, so that lines never mix.
func (m member) say(event string, fields map[string]any) {
	fields["event"], fields["rank"], fields["generation"] = event, m.rank, m.generation
	line, err := json.Marshal(fields)
	if err != nil {
		panic(err) // only plain numbers and strings go in
	}
	os.Stdout.Write(append(line, '\n'))
}
