// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
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
	Reason     string         `json:"reason"`
	Members    []listedMember `json:"members"`
}

type listedMember struct {
	Alloc      string `json:"alloc"`
	Node       string `json:"node"`
	Address    string `json:"address"`
	Phase      string `json:"phase"`
	Generation uint64 `json:"generation"`
	GPUs       int    `json:"gpus"`
}

func printJSON(out io.Writer, gangs []consul.Gang) error {
	all := []listed{}
	for _, g := range gangs {
		l := listed{Namespace: g.Key.Namespace, Job: g.Key.Job, Group: g.Key.Group, Run: g.Key.Run, State: string(g.Head.State),
			Generation: g.Head.Generation, Restarts: g.Head.Restarts, World: g.Head.World, Reason: g.Head.Reason, Members: []listedMember{}}
		for _, r := range g.Records {
			l.Members = append(l.Members, listedMember{Alloc: r.Member.Alloc, Node: r.Member.Node, Address: r.Member.Address.String(),
				Phase: string(r.Phase), Generation: r.Generation, GPUs: len(r.Member.GPUs)})
		}
		all = append(all, l)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(all)
}

func printTable(out io.Writer, gangs []consul.Gang) {
	if len(gangs) == 0 {
		fmt.Fprintln(out, "no gangs")
		return
	}
	t := table.NewWriter()
	t.SetOutputMirror(out)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"Namespace", "Job", "Group", "State", "Generation", "Restarts", "Members", "Reason"})
	for _, g := range gangs {
		t.AppendRow(table.Row{g.Key.Namespace, g.Key.Job, g.Key.Group, g.Head.State, g.Head.Generation, g.Head.Restarts, count(len(g.Records), "member"), g.Head.Reason})
	}
	t.Render()
}
