package bench

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// allToAllV: every rank gives each rank a part of its own length, as a matrix or a rule says. The size is the most that one rank sends or
// receives. In place is not defined: parts of different lengths lie at different places.
//
// busbw = the most that one rank sends to or receives from the others, over the time of the slowest rank. With equal parts that is
// algbw · (n−1)/n. nccl-tests multiplies by (n−1)/n whatever the matrix, which is right for equal parts only.
var allToAllV = collective{
	name:     "alltoallv",
	about:    "alltoall with unequal parts: --spread or --matrix",
	exchange: true,
	slowest:  true,
	layout: func(s shape, size result.Bytes, t nccl.DataType) layout {
		m := s.traffic.at(s.world, size, t)
		l := layout{send: m.row(s.rank), recv: m.column(s.rank)}
		elt := result.Bytes(t.Size())
		for r := range s.world {
			row, column := m.row(r), m.column(r)
			own := m.count(r, r)
			l.bytes = max(l.bytes, result.Bytes(max(row, column))*elt)
			l.crossing = max(l.crossing, result.Bytes(max(row, column)-own)*elt)
			for c := range s.world {
				l.count = max(l.count, m.count(r, c))
			}
		}
		return l
	},
	factor: otherParts,
	rounds: func(c call) [][]csrc.Step {
		m := c.traffic.at(c.world, c.ask, c.dtype)
		var round []csrc.Step
		var sent, received result.Count
		for r := range c.world {
			if n := m.count(c.rank, r); n > 0 {
				round = append(round, c.part(csrc.StepSend, sent, n, r))
				sent += n
			}
			if n := m.count(r, c.rank); n > 0 {
				round = append(round, c.part(csrc.StepRecv, received, n, r))
				received += n
			}
		}
		return [][]csrc.Step{round}
	},
	expect: func(s shape, l layout) []piece {
		m := s.traffic.at(s.world, l.ask, l.dtype)
		var out []piece
		at := result.Count(0)
		for r := range s.world {
			n := m.count(r, s.rank)
			if n == 0 {
				continue
			}
			first := result.Count(0)
			for c := range s.rank {
				first += m.count(r, c)
			}
			out = append(out, piece{at: int64(at), count: int64(n), source: r, first: int64(first)})
			at += n
		}
		return out
	},
}

// traffic says how an alltoallv divides a message.
type traffic struct {
	spread float64 // 0: equal parts; 1: a part grows with the distance of the ranks
	bytes  Matrix  // nil: spread decides
}

// Matrix is how many bytes each rank (row) sends to each (column).
type Matrix [][]int64

// counted is a traffic at one size, in elements.
type counted struct {
	world int
	n     []result.Count // from rank · world + to rank
}

func (m counted) count(from, to int) result.Count { return m.n[from*m.world+to] }

func (m counted) row(from int) (sum result.Count) {
	for to := range m.world {
		sum += m.count(from, to)
	}
	return sum
}

func (m counted) column(to int) (sum result.Count) {
	for from := range m.world {
		sum += m.count(from, to)
	}
	return sum
}

// at is the traffic of a message of size bytes: what the busiest rank sends or receives. Parts are multiples of 16 bytes. Without a matrix
// the part for the rank at distance d (from 0 up to n−1, upwards and round) is (1−spread)/n + spread·d/(n(n−1)/2) of the message, as in
// nccl-tests.
func (t *traffic) at(world int, size result.Bytes, dtype nccl.DataType) counted {
	m := counted{world: world, n: make([]result.Count, world*world)}
	elt := int64(dtype.Size())
	scale := 1.0
	if t.bytes != nil {
		if most := t.bytes.Busiest(world); most > 0 {
			scale = float64(size) / float64(most)
		}
	}
	for from := range world {
		for to := range world {
			var b float64
			if t.bytes != nil {
				b = float64(t.bytes[from][to]) * scale
			} else {
				b = t.share(world, (to-from+world)%world) * float64(size)
			}
			m.n[from*world+to] = result.Count(int64(b+1e-6) / partAlign * partAlign / elt)
		}
	}
	return m
}

func (t *traffic) share(world, distance int) float64 {
	if world == 1 {
		return 1
	}
	n := float64(world)
	return (1-t.spread)/n + t.spread*float64(distance)/(n*(n-1)/2)
}

// Busiest is the most that one of the first world ranks sends to or receives from them.
func (m Matrix) Busiest(world int) result.Bytes {
	var most int64
	for r := range world {
		var row, column int64
		for c := range world {
			row += m[r][c]
			column += m[c][r]
		}
		most = max(most, row, column)
	}
	return result.Bytes(most)
}

// maxMatrix bounds a matrix file.
const maxMatrix = 4096

// ReadMatrix reads an alltoallv matrix: a line a sending rank, numbers of bytes to each rank with blanks between, "#" begins a comment. It is
// square and has at least world ranks; more are allowed and not used.
func ReadMatrix(r io.Reader, name string, world int) (Matrix, error) {
	var out Matrix
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		row := make([]int64, len(fields))
		for i, f := range fields {
			v, err := strconv.ParseFloat(f, 64)
			if err != nil || !(v >= 0 && v < math.MaxInt64/maxMatrix) {
				return nil, fmt.Errorf("%s:%d: %q is no number of bytes", name, n, f)
			}
			row[i] = int64(v)
		}
		if len(out) > 0 && len(row) != len(out[0]) {
			return nil, fmt.Errorf("%s:%d: %d numbers, but the lines before have %d", name, n, len(row), len(out[0]))
		}
		if out = append(out, row); len(out) > maxMatrix {
			return nil, fmt.Errorf("%s: more than %d lines", name, maxMatrix)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(out) == 0 || len(out) != len(out[0]) {
		return nil, fmt.Errorf("%s: not a square matrix of bytes: %d lines", name, len(out))
	}
	if len(out) < world {
		return nil, fmt.Errorf("%s: a matrix of %d ranks, but there are %d", name, len(out), world)
	}
	if out.Busiest(world) < partAlign {
		return nil, fmt.Errorf("%s: no part of %d bytes or more among the first %d ranks", name, partAlign, world)
	}
	return out, nil
}
