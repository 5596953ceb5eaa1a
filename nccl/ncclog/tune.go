package ncclog

import (
	"bytes"
	"strings"
)

// column is one column of a table of estimates.
type column struct{ algo, proto string }

type tuneKey struct{ fn, algo, proto string }

type selKey struct {
	fn, kind, algo, proto, kernel string
	bytes                         int64
	lo, hi, channels              int
}

// algoNames by the number that 2.20 to 2.23 print.
var (
	algoNames  = []string{"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"}
	protoNames = []string{"LL", "LL128", "Simple"}
)

// canonical is the one way in which this package writes an algorithm or protocol: NCCL itself writes RING, Ring and 1.
func canonical(b []byte, names []string) string {
	b = bytes.TrimSpace(b)
	if len(b) == 1 && int(b[0]-'0') < len(names) {
		return names[b[0]-'0']
	}
	flat := strings.ReplaceAll(string(b), "_", "")
	for _, n := range names {
		if strings.EqualFold(n, flat) {
			return n
		}
	}
	return strings.ToValidUTF8(flat, "?")
}

// tableRow takes a row of the table of estimates.
func (r *Reader) tableRow(t *thread, row []byte) {
	name := bytes.TrimSpace(cutAt(row, "|"))
	cells := after(row, "|")
	x := r.rankOf(t)
	switch string(name) {
	case "Algorithm":
		t.cols = t.cols[:0]
		for _, cell := range bytes.Split(cells, []byte("|")) {
			if a := bytes.TrimSpace(cell); len(a) > 0 {
				for _, p := range protoNames {
					t.cols = append(t.cols, column{canonical(a, algoNames), p})
				}
			}
		}
		return
	case "Protocol", "Latency/AlgBw", "":
		return
	}
	cols := t.cols
	if len(cols) == 0 { // up to 2.17 there is one block of three algorithms
		for _, a := range []string{"Tree", "Ring", "CollNet"} {
			for _, p := range protoNames {
				cols = append(cols, column{a, p})
			}
		}
	}
	i := 0
	for len(cells) > 0 && i < len(cols) {
		cell := bytes.TrimSpace(cutAt(cells, "|"))
		cells = after(cells, "|")
		if len(cell) > 0 {
			r.tableCell(x, name, cols[i], cell)
			i++
		}
	}
}

func (r *Reader) tableCell(x *rank, name []byte, col column, cell []byte) {
	c := at(cell)
	if string(name) == "Max NThreads" {
		if n := c.num(); !c.bad && len(x.max) < maxKinds {
			x.max = append(x.max, TuningMax{col.algo, col.proto, n})
		}
		return
	}
	lat := c.float()
	c.lit("/")
	bw := c.float()
	key := tuneKey{r.str(name), col.algo, col.proto}
	if _, ok := x.tuned[key]; ok || c.bad {
		return
	}
	if len(x.tuning) >= maxKinds {
		r.drop("estimates")
		return
	}
	if x.tuned == nil {
		x.tuned = map[tuneKey]struct{}{}
	}
	x.tuned[key] = struct{}{}
	x.tuning = append(x.tuning, TuningCell{key.fn, key.algo, key.proto, lat, bw, r.place()})
}

// matrixRow takes a row without a prefix that follows "Enabled NCCL Func/Proto/Algo Matrix:". It reports whether it was one.
func (r *Reader) matrixRow(row []byte) bool {
	parts := bytes.SplitN(row, []byte("|"), 3)
	if len(parts) != 3 {
		return false
	}
	t := r.matrix
	name := bytes.TrimSpace(parts[0])
	protos, algos := bytes.Fields(parts[1]), bytes.Fields(parts[2])
	if string(name) == "Function" {
		t.cols = t.cols[:0]
		for _, p := range protos {
			t.cols = append(t.cols, column{proto: canonical(p, protoNames)})
		}
		for _, a := range algos {
			t.cols = append(t.cols, column{algo: canonical(a, algoNames)})
		}
		return true
	}
	x := r.rankOf(t)
	for i, cell := range append(protos, algos...) {
		c := at(cell)
		if n := c.num(); !c.bad && i < len(t.cols) && len(x.matrix) < maxKinds {
			x.matrix = append(x.matrix, MatrixCell{r.str(name), t.cols[i].algo, t.cols[i].proto, n, r.evidence(bytes.TrimSpace(row))})
		}
	}
	return true
}

// selection takes "AllReduce: 1024 Bytes -> …" and "AllReduce [Symmetric]: …", 2.23 and later.
func (r *Reader) selection(t *thread, msg []byte) bool {
	i := bytes.IndexByte(msg, ':')
	if i <= 0 || i > 40 {
		return false
	}
	c := at(msg[i+1:])
	n := c.num()
	if !c.try(" Bytes -> ") {
		return false
	}
	name := msg[:i]
	var kind []byte
	if j := bytes.Index(name, []byte(" [")); j > 0 && name[i-1] == ']' {
		kind = name[j+2 : i-1]
		name = name[:j]
	}
	r.choice(t, name, kind, n, c, msg)
	return true
}

// choice reads what was chosen: "Algo RING proto SIMPLE channel{Lo..Hi}={0..23}", "Algo 1 proto 2 time 54.7", "Kernel X nchannels 8 …".
func (r *Reader) choice(t *thread, name, kind []byte, bytesN int, c *cursor, msg []byte) {
	s := Selection{Bytes: int64(bytesN), ChannelLo: -1, ChannelHi: -1}
	switch {
	case c.try("Algo "):
		s.Algo = r.name(c.word(), algoNames)
		c.lit(" proto ")
		s.Proto = r.name(c.word(), protoNames)
		if c.try(" time ") {
			s.TimeUS = c.float()
		} else if c.try(" channel{Lo..Hi}={") {
			s.ChannelLo = c.num()
			c.lit("..")
			s.ChannelHi = c.num()
			s.Channels = s.ChannelHi - s.ChannelLo + 1
		}
	case c.try("Kernel "):
		s.Kernel = r.str(c.word())
		if c.try(" nchannels ") {
			s.Channels = c.num()
		}
	default:
		if kind == nil {
			return
		}
	}
	if c.bad {
		return
	}
	s.Func, s.Kind = r.str(name), r.str(kind)
	x := r.rankOf(t)
	k := selKey{s.Func, s.Kind, s.Algo, s.Proto, s.Kernel, s.Bytes, s.ChannelLo, s.ChannelHi, s.Channels}
	if old := x.selections[k]; old != nil {
		old.Count++
		return
	}
	if len(x.chosen) >= maxList {
		r.drop("choices of algorithm")
		return
	}
	if x.selections == nil {
		x.selections = map[selKey]*Selection{}
	}
	s.Count, s.At = 1, r.evidence(msg)
	x.selections[k] = &s
	x.chosen = append(x.chosen, &s)
}

// name is canonical without allocating for what was seen before.
func (r *Reader) name(b []byte, names []string) string {
	if len(b) == 1 || len(b) > 20 {
		return canonical(b, names)
	}
	var key [24]byte
	k := append(append(key[:0], 0), b...)
	if s, ok := r.strings[string(k)]; ok {
		return s
	}
	s := canonical(b, names)
	if len(r.strings) < maxStrings {
		r.strings[string(k)] = s
	}
	return s
}
