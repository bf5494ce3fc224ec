// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// listed is a gang as machines read it.
type listed struct {
	Namespace  string         `json:"namespace"`
	Job        string         `json:"job"`
	Group      string         `json:"group"`
	Run        string         `json:"run"`
	State      string         `json:"state"`
	Generation uint64         `json:"generation"`
	Restarts   int            `json:"restarts"`
	World      int            `json:"world"`
	Cause      string         `json:"cause,omitempty"` // why the newest generation ended
	Reason     string         `json:"reason"`
	Pool       string         `json:"pool,omitempty"`     // whose line it stands in
	Position   int            `json:"position,omitempty"` // in that line, from 1
	Ahead      string         `json:"ahead,omitempty"`    // the gang that is first in that line
	Members    []listedMember `json:"members"`
	Unreadable []string       `json:"unreadable,omitempty"`
}

type listedMember struct {
	Rank       *int   `json:"rank"` // null: it is in no generation, such as a spare
	Alloc      string `json:"alloc"`
	Node       string `json:"node"`
	Address    string `json:"address"`
	Phase      string `json:"phase"` // "gone": named in the generation, but not here now
	Generation uint64 `json:"generation"`
	GPUs       int    `json:"gpus"`
	Leaving    bool   `json:"leaving,omitempty"`
	Why        string `json:"why,omitempty"`       // it leaves, if not for Nomad
	Exit       string `json:"exit,omitempty"`      // how its process ended
	ExitRank   *int   `json:"exit_rank,omitempty"` // of the process that failed first, where the node has several
}

// gone is the phase of a member that was named in the generation and has no record now.
const gone = "gone"

func list(g consul.Gang) listed {
	l := listed{Namespace: g.Key.Namespace, Job: g.Key.Job, Group: g.Key.Group, Run: g.Key.Run, State: string(g.Head.State),
		Generation: g.Head.Generation, Restarts: g.Head.Restarts, World: g.Head.World, Cause: string(g.Head.Cause), Reason: g.Head.Reason,
		Pool: g.Pool, Position: g.Line.Position, Ahead: g.Line.Ahead, Members: []listedMember{}}
	for _, err := range g.Broken {
		l.Unreadable = append(l.Unreadable, err.Error())
	}
	records := map[string]gang.Record{}
	for _, r := range g.Records {
		records[r.Member.Alloc] = r
	}
	for rank, m := range g.Ranks {
		r, here := records[m.Alloc]
		if g.Head.State == gang.Running && r.Phase == gang.Prepared && r.Generation == g.Head.Generation {
			r.Phase = gang.Started // it is not written again for that
		}
		if !here {
			r = gang.Record{Member: m, Phase: gone, Generation: g.Head.Generation}
		}
		delete(records, m.Alloc)
		l.Members = append(l.Members, listMember(r, &rank))
	}
	for _, r := range g.Records {
		if _, left := records[r.Member.Alloc]; left {
			l.Members = append(l.Members, listMember(r, nil))
		}
	}
	return l
}

func listMember(r gang.Record, rank *int) listedMember {
	m := listedMember{Rank: rank, Alloc: r.Member.Alloc, Node: r.Member.Node, Address: r.Member.Address.String(),
		Phase: string(r.Phase), Generation: r.Generation, GPUs: len(r.Member.GPUs), Leaving: r.Leaving, Why: r.Why}
	if r.Exit != nil {
		m.Exit, m.ExitRank = r.Exit.String(), r.Exit.Rank
	}
	return m
}

// selected are the gangs of one job; an empty name: all.
func selected(gangs []consul.Gang, job string) []consul.Gang {
	return slices.DeleteFunc(slices.Clone(gangs), func(g consul.Gang) bool { return job != "" && g.Key.Job != job })
}

// printJSON prints one document; with lines it takes one line.
func printJSON(out io.Writer, gangs []consul.Gang, lines bool) error {
	all := []listed{}
	for _, g := range gangs {
		all = append(all, list(g))
	}
	encoder := json.NewEncoder(out)
	if !lines {
		encoder.SetIndent("", "  ")
	}
	return encoder.Encode(all)
}

func printTable(out io.Writer, gangs []consul.Gang, ranks bool) {
	if len(gangs) == 0 {
		fmt.Fprintln(out, "no gangs")
		return
	}
	t := newTable(out, "Namespace", "Job", "Group", "State", "Generation", "Restarts", "Members", "Line", "Reason")
	for _, g := range gangs {
		line := ""
		if g.Line.Position > 0 {
			line = fmt.Sprintf("%s #%d", g.Pool, g.Line.Position)
		}
		row(t, g.Key.Namespace, g.Key.Job, g.Key.Group, g.Head.State, g.Head.Generation, g.Head.Restarts, count(len(g.Records), "member"), line, g.Head.Reason)
	}
	t.Render()
	if !ranks {
		return
	}
	for _, g := range gangs {
		fmt.Fprintf(out, "\n%s\n", plain(strings.Join([]string{g.Key.Namespace, g.Key.Job, g.Key.Group}, "/")))
		t := newTable(out, "Rank", "Node", "Address", "Phase", "Generation", "GPUs", "Exit")
		for _, m := range list(g).Members {
			rank, phase := "-", m.Phase
			if m.Rank != nil {
				rank = strconv.Itoa(*m.Rank)
			}
			if m.Leaving {
				phase += ", leaves"
			}
			row(t, rank, m.Node, m.Address, phase, m.Generation, m.GPUs, m.Exit)
		}
		t.Render()
	}
}

func newTable(out io.Writer, names ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(out)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(names)
	return t
}

// row adds values that others wrote: none may steer the terminal.
func row(t table.Writer, values ...any) {
	r := make(table.Row, len(values))
	for i, v := range values {
		r[i] = plain(fmt.Sprint(v))
	}
	t.AppendRow(r)
}

func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}
