// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// kind is what a frame says.
type kind byte

const (
	// hello opens a call; welcome answers it. Both carry versions.
	hello kind = 1 + iota
	welcome
	// refuse answers a caller that is of another gang, generation or rank.
	refuse
	// flow opens a stream of bytes that ends with the sender's half of the
	// connection; count answers with how many came, and in what time.
	flow
	count
	// tell carries the rate of a pair to a neighbour; heard answers it.
	tell
	heard
)

// A frame on the wire, big-endian:
//
//	4 "nGPF"  1 version  1 kind  2 payload length
//	4 from    4 to       8 generation  32 view
//	then the payload, JSON of at most maxPayload bytes
const (
	magic      = "nGPF"
	wireV      = 1
	headerSize = 56
	maxPayload = 4 << 10
)

// view is a digest of all that both ends of a call must agree on. It holds
// the allocation IDs, so whoever was not told them is refused.
type view [sha256.Size]byte

func viewOf(a gang.Assignment) view {
	h := sha256.New()
	write := func(s string) { fmt.Fprintf(h, "%d:%s", len(s), s) }
	for _, s := range []string{a.Key.Region, a.Key.Namespace, a.Key.Job, a.Key.Group, a.Key.Run} {
		write(s)
	}
	for _, m := range a.Members {
		write(m.Alloc)
		write(m.Address.String())
	}
	return view(h.Sum(nil))
}

type frame struct {
	kind       kind
	from, to   int
	generation uint64
	view       view
	payload    []byte
}

// errStranger: what answers or calls does not speak this protocol.
var errStranger = errors.New("no preflight of this driver")

func (f frame) encode() []byte {
	b := make([]byte, 0, headerSize+len(f.payload))
	b = append(b, magic...)
	b = append(b, wireV, byte(f.kind))
	b = binary.BigEndian.AppendUint16(b, uint16(len(f.payload)))
	b = binary.BigEndian.AppendUint32(b, uint32(f.from))
	b = binary.BigEndian.AppendUint32(b, uint32(f.to))
	b = binary.BigEndian.AppendUint64(b, f.generation)
	b = append(b, f.view[:]...)
	return append(b, f.payload...)
}

// readFrame reads one frame. The kind, the ranks and the payload are as
// anybody may have written them.
func readFrame(r io.Reader) (frame, error) {
	var head [headerSize]byte
	if n, err := io.ReadFull(r, head[:]); err != nil {
		if n > 0 && string(head[:min(n, len(magic))]) != magic[:min(n, len(magic))] {
			return frame{}, errStranger
		}
		return frame{}, err
	}
	if string(head[:4]) != magic {
		return frame{}, errStranger
	}
	if head[4] != wireV {
		return frame{}, fmt.Errorf("the preflight's version is %d there, %d here", head[4], wireV)
	}
	f := frame{kind: kind(head[5]), from: int(binary.BigEndian.Uint32(head[8:])), to: int(binary.BigEndian.Uint32(head[12:])),
		generation: binary.BigEndian.Uint64(head[16:]), view: view(head[24:56])}
	length := int(binary.BigEndian.Uint16(head[6:]))
	if length > maxPayload {
		return frame{}, fmt.Errorf("payload: %d bytes; allowed are %d", length, maxPayload)
	}
	f.payload = make([]byte, length)
	if _, err := io.ReadFull(r, f.payload); err != nil {
		return frame{}, err
	}
	return f, nil
}

// decode reads a payload.
func (f frame) decode(into any) error {
	if err := json.Unmarshal(f.payload, into); err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	return nil
}

// encodePayload cannot fail on the plain values it is given.
func encodePayload(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil || len(data) > maxPayload {
		return nil
	}
	return data
}

// counted is the payload of count.
type counted struct {
	Bytes int64 `json:"bytes"`
	// Nanos is from the first byte to the end.
	Nanos int64 `json:"nanos"`
}

// Pair is a measured pair of neighbours in rank order; the payload of tell.
type Pair struct {
	// From and To are ranks: the data went this way.
	From int `json:"from"`
	To   int `json:"to"`
	// Gbps is in 10^9 bits a second. Baseline is what the pair usually
	// reaches; 0: not known.
	Gbps     float64 `json:"gbps"`
	Baseline float64 `json:"baseline"`
}
