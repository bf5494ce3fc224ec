// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// What the first release writes of itself, byte for byte.
const (
	firstHead   = `{"v":1,"state":"stopping","generation":3,"view":"00ff","world":2,"restarts":1,"reason":"rank 1 on n exited with code 1"}`
	firstRecord = `{"v":1,"member":{"alloc":"a","index":0,"node":"n","address":"10.0.0.1","ports":[1,2],"slots":8,"version":"0.1.0"},"phase":"broken","generation":3,"exit":{"generation":3,"code":1}}`
	firstSpec   = `{"Nodes":2,"FormTimeout":0,"PrepareTimeout":60000000000,"FenceDelay":5000000000,"Restarts":3}`
)

func TestWhatTheFirstReleaseWritesIsRead(t *testing.T) {
	h, err := DecodeHead([]byte(firstHead))
	must.NoError(t, err)
	must.Eq(t, Head{V: 1, State: Stopping, Generation: 3, View: "00ff", World: 2, Restarts: 1, Reason: "rank 1 on n exited with code 1"}, h)
	must.Eq(t, CauseFailure, EndOf(Head{State: Running, Generation: 3}, h))
	r, err := DecodeRecord("a", []byte(firstRecord))
	must.NoError(t, err)
	must.Eq(t, "exited with code 1", r.Exit.String())
	must.Nil(t, r.Exit.Rank)
	var s Spec
	must.NoError(t, json.Unmarshal([]byte(firstSpec), &s))
	must.NoError(t, Spec{Nodes: 2, MinNodes: 2, PrepareTimeout: time.Minute, FenceDelay: 5 * time.Second, Restarts: 3, Completion: CompletionAll}.Agree(s))
}

func TestWhatALaterReleaseAddsIsReadOver(t *testing.T) {
	later := func(text string) []byte {
		return []byte(strings.Replace(text, `{"v":1,`, `{"v":1,"later":{"of":["any","kind"]},"cause":"solar_flare",`, 1))
	}
	h, err := DecodeHead(later(firstHead))
	must.NoError(t, err)
	must.Eq(t, CauseUnknown, h.Cause)
	must.Eq(t, CauseUnknown, EndOf(Head{State: Running, Generation: 3}, h))
	r, err := DecodeRecord("a", later(firstRecord))
	must.NoError(t, err)
	must.Eq(t, CauseUnknown, r.Cause)
	var s Spec
	must.NoError(t, json.Unmarshal([]byte(strings.Replace(firstSpec, "{", `{"Later":1,`, 1)), &s))
	must.Eq(t, 2, s.Nodes)
}

func TestAReleaseThatCannotBeUnderstoodIsNamed(t *testing.T) {
	_, err := DecodeHead([]byte(strings.Replace(firstHead, `"v":1`, `"v":2`, 1)))
	must.EqError(t, err, "head: version 2; this driver reads version 1")
	_, err = DecodeRecord("a", []byte(strings.Replace(firstRecord, `"v":1`, `"v":2`, 1)))
	must.EqError(t, err, "member a: version 2; this driver reads version 1")
}

func TestValuesFromAnybodyAreChecked(t *testing.T) {
	for change, want := range map[string]string{
		`"state":"flying"`: `head: state "flying"; allowed are forming,`,
		`"world":-1`:       "head: world -1",
		`"world":4097`:     "allowed are 0 to 4096",
		`"restarts":-1`:    "restarts -1",
		`"view":"../x"`:    `head: view "../x"; allowed are up to 16 hexadecimal digits`,
		`"out":"` + strings.Repeat("a", 257) + `"`:     "allowed are up to 256 bytes",
		`"reason":"` + strings.Repeat("x", 2000) + `"`: "bytes, allowed are 1024",
		`"generation":-1`: "head: json",
	} {
		_, err := DecodeHead([]byte(strings.Replace(firstHead, "}", ","+change+"}", 1)))
		must.ErrorContains(t, err, want)
	}
	for change, want := range map[string]string{
		`"phase":"asleep"`:       `member a: phase "asleep"; allowed are idle,`,
		`"member":{"alloc":"b"}`: `member a: the record names allocation "b"`,
		`"member":{"alloc":"a","address":"","ports":[0,1],"slots":0}`: "address: none",
		`"member":{"ports":[0,70000]}`:                                "ports[1]: 70000; allowed are 1 to 65535",
		`"member":{"node":"a\u001b[2J"}`:                              "without control characters",
	} {
		_, err := DecodeRecord("a", []byte(firstRecord[:len(firstRecord)-1]+","+change+"}"))
		must.ErrorContains(t, err, want)
	}
	r := Record{Member: Member{Alloc: "a", Address: netip.MustParseAddr("10.0.0.1"), Ports: [2]int{1, 2}, Slots: 1}, Phase: Idle, Leaving: true,
		Cause: CauseNotice, Why: "\x1b[2J" + strings.Repeat("x", 5000)}
	data, err := EncodeRecord(r)
	must.NoError(t, err)
	got, err := DecodeRecord("a", data)
	must.NoError(t, err)
	must.StrHasPrefix(t, " [2Jxxx", got.Why)
	must.LessEq(t, maxReason, len(got.Why))
}
