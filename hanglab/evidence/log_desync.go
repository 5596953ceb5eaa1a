package evidence

import (
	"bytes"
	"slices"
)

// desyncReader reads PyTorch's old report of what ranks did last, which goes over several lines.
type desyncReader struct {
	seq  int64  // of the ranks that the next lines list
	what string // "started" or "finished"
	left int    // lines that the report may still have
}

const maxDesync = 1 << 12

// desyncLine takes a line of the report.
func (c *logContext) desyncLine(line []byte, at Where) bool {
	f := newFact(Desync, at, line)
	f.Ranks = rankSet(line)
	switch {
	case bytes.Contains(line, []byte("Timeout at collective: ")):
		_, rest, _ := bytes.Cut(line, []byte("Timeout at collective: "))
		name, _, _ := bytes.Cut(rest, []byte(","))
		f.Op, f.Detail = torchOp(bytes.TrimSpace(name)), "timeout"
		f.seqBehind(rest, "#")
		c.desync = desyncReader{seq: -1, what: "started", left: maxDesync}
	case bytes.Contains(line, []byte("ever joined any collective")):
		f.Detail = "never joined"
	case bytes.Contains(line, []byte("didn't finish collective #")):
		f.Detail = "joined, not finished"
		f.seqBehind(line, "didn't finish collective #")
	case bytes.Contains(line, []byte("didn't join collective #")):
		f.Detail = "finished, next not joined"
		f.seqBehind(line, "didn't join collective #")
		if n, ok := numberBehind(line, "finished collective #"); ok {
			f.LastCompleted = int64(n)
		}
	default: // headings
		return bytes.Contains(line, []byte("napshot of ranks")) || bytes.Contains(line, []byte("lagging"))
	}
	if len(f.Ranks) == 1 {
		f.Rank = f.Ranks[0]
	}
	c.addOther(f)
	return true
}

func (f *Fact) seqBehind(b []byte, word string) {
	if n, ok := numberBehind(b, word); ok {
		f.Seq = int64(n)
	}
}

// take takes "#42 started ranks:" and "[0-2] started ALLREDUCE", which have no word of their own.
func (d *desyncReader) take(c *logContext, line []byte, at Where) bool {
	if d.left == 0 {
		return false
	}
	d.left--
	b := bytes.TrimLeft(c.prefix.text, " \t-")
	if len(b) < 4 {
		return false
	}
	if b[0] == '#' {
		n, rest, ok := leadingNumber(b[1:])
		if !ok {
			return false
		}
		for _, what := range []string{"started", "finished"} {
			if bytes.HasPrefix(rest, []byte(" "+what+" ranks:")) {
				d.seq, d.what = int64(n), what
				return true
			}
		}
		return false
	}
	if b[0] != '[' || d.seq < 0 {
		return false
	}
	_, rest, ok := bytes.Cut(b, []byte("] "+d.what+" "))
	if !ok {
		return false
	}
	f := newFact(Desync, at, line)
	f.Seq, f.Detail, f.Ranks, f.Op = d.seq, d.what, rankSet(b), torchOp(bytes.TrimSpace(rest))
	if len(f.Ranks) == 1 {
		f.Rank = f.Ranks[0]
	}
	c.addOther(f)
	return true
}

const maxRankSet = 1 << 17

// rankSet reads the first "[0-2, 5]" of a line.
func rankSet(line []byte) []int {
	for from := 0; ; {
		i := bytes.IndexByte(line[from:], '[')
		if i < 0 {
			return nil
		}
		i += from
		end := bytes.IndexByte(line[i:], ']')
		if end < 0 {
			return nil
		}
		if ranks := ranksIn(line[i+1 : i+end]); len(ranks) > 0 {
			return ranks
		}
		from = i + 1
	}
}

// ranksIn reads "0-2, 5" and "0 1 5"; nil where it is something else.
func ranksIn(b []byte) (out []int) {
	for word := range bytes.FieldsFuncSeq(b, func(r rune) bool { return r == ',' || r == ' ' }) {
		first, last, isRange := bytes.Cut(word, []byte("-"))
		a := shortNumber(first)
		z := a
		if isRange {
			z = shortNumber(last)
		}
		if len(first) == 0 || len(first) > 7 || len(last) > 7 || a < 0 || z < a || len(out)+z-a >= maxRankSet {
			return nil
		}
		for r := a; r <= z; r++ {
			out = append(out, r)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
