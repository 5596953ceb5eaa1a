package diagnose

import "slices"

const (
	pictureRows    = 16
	pictureColumns = 7
)

// picture shows a group around a sequence number. Ranks with the same row as one that is shown are left out, the odd ones last of all.
func picture(g *group, seq int64, odd []int) *Picture {
	odd = slices.Sorted(slices.Values(odd))
	first := max(seq-3, 1)
	if low := lowest(g); low > first && low <= seq {
		first = low
	}
	last := min(max(g.mostEnq(), seq), first+pictureColumns-1)
	p := &Picture{Group: g.title(), First: first}
	var usual []*ask
	for s := first; s <= last; s++ {
		usual = append(usual, g.askAt(s))
	}
	shown := map[string]int{}
	most := g.mostEnq()
	for _, pass := range []bool{true, false} { // the odd ones have their places first
		for _, m := range g.members {
			_, isOdd := slices.BinarySearch(odd, m.rank)
			if isOdd != pass {
				continue
			}
			row := PictureRow{Rank: m.rank, Odd: isOdd, Cells: m.cells(usual, first, most, isOdd)}
			k := rowKey(row)
			if shown[k] >= 2 && len(g.members) > 8 || len(p.Rows) == pictureRows {
				p.Left = append(p.Left, m.rank)
				continue
			}
			shown[k]++
			p.Rows = append(p.Rows, row)
		}
	}
	slices.SortFunc(p.Rows, func(a, b PictureRow) int { return a.Rank - b.Rank })
	slices.Sort(p.Left)
	if len(p.Rows) == 0 {
		return nil
	}
	return p
}

func lowest(g *group) int64 {
	low := int64(-1)
	for _, m := range g.members {
		if len(m.calls) > 0 && (low < 0 || m.low() < low) {
			low = m.low()
		}
	}
	return low
}

// cells is a member's row; usual is what most call in each column.
func (m *member) cells(usual []*ask, first, most int64, odd bool) (out []PictureCell) {
	for i, a := range usual {
		seq := first + int64(i)
		c := m.at(seq)
		var cell PictureCell
		switch state := m.state(seq); {
		case c != nil:
			cell = PictureCell{Op: c.ask.op, Size: c.ask.sizeText()}
			fallthrough
		case m.counted && seq <= m.enq:
			cell.State = map[string]string{"completed": "C", "started": "S", "enqueued": "Q"}[state]
		}
		if odd && c != nil && a != nil && !a.same(c.ask) {
			cell.Odd = true
		}
		if odd && m.absent(seq) && most >= seq {
			cell.Odd = true
		}
		out = append(out, cell)
	}
	return out
}

func rowKey(r PictureRow) string {
	s := ""
	for _, c := range r.Cells {
		s += c.Op + "|" + c.Size + "|" + c.State + ";"
	}
	return s
}
