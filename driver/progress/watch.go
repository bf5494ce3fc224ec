// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Board is where the members of a gang see each other's progress.
type Board interface {
	// Publish writes this member's record.
	Publish(ctx context.Context, r Record) error
	// Read reads all records; those that cannot be read are left out.
	Read(ctx context.Context) ([]Record, error)
}

// Place is this member's in its generation.
type Place struct {
	Generation uint64 `json:"generation"`
	// Rank is the member's, First that of its first process, Members how many
	// there are.
	Rank    int    `json:"rank"`
	First   int    `json:"first"`
	Members int    `json:"members"`
	Node    string `json:"node"`
}

// Watch follows one generation's processes on one node.
type Watch struct {
	Place Place
	Files Files
	Rule  Rule
	// Off: a hang is not looked for.
	Off       bool
	Witnesses []Witness
	// Board is nil where members do not tell each other. Ratio to the median
	// makes a straggler.
	Board Board
	Ratio float64
	// GPUs are the reserved devices in visible order, a process each where
	// there are as many.
	GPUs []string
	// Report is told of stragglers, and of suspicions that are none.
	Report func(kind, text string)
	// Every is how often the files are read; 0: 5 s.
	Every time.Duration
}

const (
	defaultEvery = 5 * time.Second
	// meterEvery is how often witnesses are shown a running training, after
	// the first meterFirst looks: one that hangs soon must be known by then.
	meterEvery = 30 * time.Second
	meterFirst = 4
	// publishEvery is how often a member writes its record, for each group
	// of publishGroup members: at most 8.5 writes a second for a gang of any size.
	publishEvery = 30 * time.Second
	publishGroup = 256
	// boardTime bounds one call of the board.
	boardTime = 10 * time.Second
	// doubtAfter is how long witnesses may make up their mind before a stall
	// is told as a slow step.
	doubtAfter = 30 * time.Second
)

// Interval is how often a member of a gang of n publishes.
func Interval(n int) time.Duration {
	return publishEvery * time.Duration((n+publishGroup-1)/publishGroup)
}

// Run watches until ctx ends, then it returns "", or until the training
// hangs, which it says in words. start is when the processes began.
func (w *Watch) Run(ctx context.Context, start time.Time) string {
	s := &watching{Watch: w, pace: NewPace(start), means: map[int]*mean{}, named: map[int]bool{}}
	every := w.Every
	if every <= 0 {
		every = defaultEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ""
		case now := <-tick.C:
			if hang := s.step(ctx, now); hang != "" && ctx.Err() == nil {
				return hang
			}
		}
	}
}

// watching is a Watch under way; time comes in with each step.
type watching struct {
	*Watch
	pace      *Pace
	samples   []Sample
	means     map[int]*mean
	metered   time.Time
	shown     int // to the witnesses
	published time.Time
	told      Record         // what was published last
	suspected time.Time      // since when progress has stopped; zero: it goes on
	doubted   bool           // a stall was told that is no hang
	slow      map[int]string // stragglers at the last look, by rank
	named     map[int]bool   // and those that were told
	broken    string         // the last fault of a file that was told
	silent    bool           // the board was out of reach, and that was told
}

// step is one look.
func (s *watching) step(ctx context.Context, now time.Time) string {
	before, _ := s.pace.Step()
	samples, err := s.Files.Read()
	if err != nil && err.Error() != s.broken {
		s.broken = err.Error()
		s.Report("Warning", s.broken)
	}
	s.samples = samples
	s.pace.Observe(now, samples)
	for _, x := range samples {
		if s.means[x.Local] == nil {
			s.means[x.Local] = &mean{}
		}
		s.means[x.Local].observe(now, x.Line)
	}
	after, seen := s.pace.Step()
	stall, stalled := s.pace.Stalled(now, s.Rule)
	progressing := seen && after != before
	if !s.Off && progressing && (s.shown < meterFirst || now.Sub(s.metered) >= meterEvery) {
		s.metered = now
		s.shown++
		for _, witness := range s.Witnesses {
			witness.Observe(ctx, now, true)
		}
	}
	if s.Board != nil && now.Sub(s.published) >= Interval(s.Place.Members) {
		s.published = now
		s.exchange(ctx)
	}
	if s.Off || !stalled {
		s.doubted, s.suspected = false, time.Time{}
		return ""
	}
	if s.suspected.IsZero() {
		s.suspected = now
	}
	var opinions []Opinion
	for _, witness := range s.Witnesses {
		opinions = append(opinions, witness.Ask(ctx, now))
	}
	hang, why := Decide(s.Rule, opinions)
	if !hang {
		if !s.doubted && now.Sub(s.suspected) >= doubtAfter {
			s.doubted = true
			s.Report("Slow", stall.String()+"; no restart yet: "+describeOpinions(opinions))
		}
		return ""
	}
	parts := []string{"hang: " + stall.String()}
	if why != "" {
		parts = append(parts, why)
	}
	if who := s.behind(ctx); who != "" {
		parts = append(parts, who)
	}
	return strings.Join(parts, "; ")
}

func describeOpinions(opinions []Opinion) string {
	var reasons []string
	for _, o := range opinions {
		if o.Reason != "" {
			reasons = append(reasons, o.Reason)
		}
	}
	if len(reasons) == 0 {
		return "no other sign of a hang"
	}
	return strings.Join(reasons, "; ")
}

// record is this member's as it stands.
func (s *watching) record() Record {
	r := Record{V: RecordVersion, Generation: s.Place.Generation, Rank: s.Place.Rank, First: s.Place.First, Node: s.Place.Node}
	for _, x := range s.samples {
		if x.Local == WholeNode && len(s.samples) > 1 || len(r.Ranks) == maxStandings {
			continue // the processes speak for themselves
		}
		one := Standing{Local: x.Local, Step: x.Step, Seconds: s.means[x.Local].usual()}
		if x.Local >= 0 && len(s.GPUs) == s.Files.Slots {
			one.GPU = s.GPUs[x.Local]
		}
		r.Ranks = append(r.Ranks, one)
	}
	return r
}

// exchange publishes, and at rank 0 looks for stragglers. One that is slow at
// two looks in a row is told, once until it has caught up.
func (s *watching) exchange(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, boardTime)
	defer cancel()
	own := s.record()
	if len(own.Ranks) > 0 && !reflect.DeepEqual(own, s.told) {
		err := s.Board.Publish(ctx, own)
		if err == nil {
			s.told = own
		}
		if err != nil && !s.silent && ctx.Err() == nil {
			s.Report("Warning", fmt.Sprintf("progress is not told to the other members: %v", err))
		}
		s.silent = err != nil
	}
	if s.Place.Rank != 0 {
		return
	}
	records, err := s.Board.Read(ctx)
	if err != nil {
		return // the next look tells
	}
	slow := map[int]string{}
	for _, x := range Stragglers(s.ours(records), s.Ratio) {
		slow[x.Rank] = x.String()
		if _, again := s.slow[x.Rank]; again && !s.named[x.Rank] {
			s.named[x.Rank] = true
			s.Report("Straggler", x.String())
		}
	}
	for rank := range s.named {
		if _, still := slow[rank]; !still {
			delete(s.named, rank)
			s.Report("Straggler", fmt.Sprintf("rank %d has caught up", rank))
		}
	}
	s.slow = slow
}

// ours are the records of this generation.
func (s *watching) ours(records []Record) []Record {
	var kept []Record
	for _, r := range records {
		if r.Generation == s.Place.Generation && r.Rank < s.Place.Members {
			kept = append(kept, r)
		}
	}
	return kept
}

// behind names who stopped first, as far as the members have told.
func (s *watching) behind(ctx context.Context) string {
	records := []Record{s.record()}
	if s.Board != nil {
		ctx, cancel := context.WithTimeout(ctx, boardTime)
		defer cancel()
		if all, err := s.Board.Read(ctx); err == nil {
			for _, r := range s.ours(all) {
				if r.Rank != s.Place.Rank {
					records = append(records, r)
				}
			}
		}
	}
	return Behind(records)
}

// mean follows one process's time of a step.
type mean struct {
	line    Line
	at      time.Time
	seen    bool
	seconds []float64
}

func (m *mean) observe(now time.Time, line Line) {
	if m.seen && line.Step > m.line.Step {
		seconds := line.Seconds
		if seconds == 0 {
			seconds = now.Sub(m.at).Seconds() / float64(line.Step-m.line.Step)
		}
		m.seconds = append(m.seconds, seconds)
		m.seconds = m.seconds[max(0, len(m.seconds)-maxPaces):]
	}
	if !m.seen || line.Step != m.line.Step {
		m.line, m.at, m.seen = line, now, true
	}
}

func (m *mean) usual() float64 {
	if len(m.seconds) < fewPaces {
		return 0
	}
	return min(median(m.seconds), maxSeconds)
}
