package diagnose

// Where as many ranks say one thing as another, the calls before may tell whose call was due: programs repeat themselves, or their sizes grow by a constant.

// due are the calls that the history of a group expects at a place and at the next one.
type due struct{ now, next *ask }

const (
	fewestRepeated = 3   // calls that have come again before a repetition is believed
	longestPeriod  = 512 // calls
)

// expects is what a rank's calls before a place make likely there; nil: nothing.
func (m *member) expects(seq int64) *due {
	if d := m.repeats(seq); d != nil {
		return d
	}
	return m.grows(seq)
}

// repeats finds the period that explains most of the calls before a place: at least one whole period has come again.
func (m *member) repeats(seq int64) *due {
	var best, most int64
	for p := int64(1); p <= longestPeriod && m.askAt(seq-2*p) != nil; p++ {
		var n int64
		for n < 4*longestPeriod {
			a, b := m.askAt(seq-1-n), m.askAt(seq-1-n-p)
			if a == nil || b == nil || !a.same(b) {
				break
			}
			n++
		}
		if n >= max(p, fewestRepeated) && n > most {
			best, most = p, n
			if m.askAt(seq-1-n-p) == nil || n == 4*longestPeriod { // it explains all there is, and a longer one explains less
				break
			}
		}
	}
	if best == 0 {
		return nil
	}
	d := &due{now: m.askAt(seq - best), next: m.askAt(seq - best)}
	if best > 1 {
		d.next = m.askAt(seq - best + 1)
	}
	return d
}

// grows continues sizes that have grown, or shrunk, by one amount at least twice.
func (m *member) grows(seq int64) *due {
	a, b, c := m.askAt(seq-3), m.askAt(seq-2), m.askAt(seq-1)
	if a == nil || b == nil || c == nil || a.size < 0 {
		return nil
	}
	d := c.size - b.size
	if d == 0 || b.size-a.size != d || c.size+2*d <= 0 || !c.sized(b.size).same(b) || !c.sized(a.size).same(a) {
		return nil
	}
	return &due{c.sized(c.size + d), c.sized(c.size + 2*d)}
}

// sized is the same call with another size.
func (a *ask) sized(n int64) *ask {
	b := *a
	b.size = n
	return &b
}

// made tells that a rank has made a call like this one before a place.
func (m *member) made(a *ask, seq int64) bool {
	for i := range m.calls {
		if m.calls[i].seq < seq && m.calls[i].ask.same(a) {
			return true
		}
	}
	return false
}

// inference is what tells which of two sides is the odd one where they are equally many.
type inference int

const (
	none     inference = iota // nothing has
	oneEarly                  // its call is the one that the history has for the next place, the other's is due
	unheard                   // one rank's size is one that was never called before, the other's is due
	overSoon                  // its program is over, and the other waits for one call more
)

// byHistory breaks a tie of two sides: the side whose call was due is the usual one, if the other's is what comes after it, or a size that fits nowhere.
func (x *mismatch) byHistory() {
	if !x.tie || len(x.sides) != 2 {
		return
	}
	for usual, odd := range []int{1, 0} {
		a, b := x.sides[usual], x.sides[odd]
		m := x.g.longest(a.ranks)
		d := m.expects(x.seq)
		if d == nil || !a.ask.same(d.now) || b.ask.same(d.now) {
			continue
		}
		why := none
		switch {
		case b.ask.same(d.next):
			why = oneEarly
		case len(b.ranks) == 1 && a.ask.differs(b.ask) == SizeMismatch && !m.made(b.ask, x.seq): // two that agree on it may be right, and another operation may be due where few have it: in a branch that all should take
			why = unheard
		default:
			continue
		}
		x.settle(a, b, why)
		return
	}
}

// settle makes one side of a tie the odd one, and looks again at how its calls lie to the other's.
func (x *mismatch) settle(usual, odd side, why inference) {
	x.sides[0], x.sides[1] = usual, odd
	x.tie, x.why = false, why
	x.class, x.shift, x.match, x.hint = usual.ask.differs(odd.ask), 0, 0, false
	x.findShift()
	if why == oneEarly && x.shift == 0 && !x.alone() && x.class != OrderMismatch {
		x.class, x.shift, x.match, x.hint = SkippedCollective, 1, 1, true
	}
}

// alone tells that the calls after the place agree where they are: only this one differs.
func (x *mismatch) alone() bool {
	return agree(x.g.longest(x.sides[1].ranks), x.g.longest(x.sides[0].ranks), x.seq+1, 0) > 0
}
