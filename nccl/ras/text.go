package ras

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Limits of a report, which may come from anybody.
const (
	maxLine  = 1 << 20 // bytes of a line
	maxComms = 1 << 16
	maxNamed = 1 << 20 // ranks named in all of a report
	maxNotes = 1000
	maxRank  = 1 << 24
)

// TextReader takes a text report line by line, whole or a part of one that somebody pasted. The zero value is ready.
type TextReader struct {
	report  *Report
	section string   // "job", "comms", "errors", "warnings"
	columns []string // of the job summary's present table
	comm    *Communicator
	level   *[]int // where ranks that are named next belong to
	op      string // whose counts are being compared
	init    bool   // errors that follow are of the initialisation
	list    *[]Missing
	dead    bool
	header  map[string]bool // "#0-0 MISMATCH" that came already
	table   bool            // the table of communicators has begun
	named   int
	known   int // lines that only a report has
	raw     []*Communicator
}

// Begins tells whether a line can be the first of a report, or of a part of one.
func Begins(line string) bool {
	switch s := strings.TrimSpace(line); {
	case strings.HasPrefix(s, "NCCL version "):
		return strings.Contains(s, " compiled with CUDA ")
	case strings.HasPrefix(s, "Communicators..."), s == "Job summary":
		return true
	case strings.HasPrefix(s, "Group "):
		return strings.Join(strings.Fields(s), " ") == "Group Comms Nodes Ranks Ranks Ranks Status Errors"
	case strings.HasPrefix(s, "#"):
		_, _, _, _, ok := section(s)
		return ok
	}
	return strings.HasPrefix(strings.TrimSpace(line), "Communicator ranks have different ")
}

// Line takes the next line and tells whether it belongs to the report: the first one that does not ends it, and may begin another.
func (t *TextReader) Line(line string) bool {
	if t.report == nil {
		t.report = &Report{Nodes: -1, Processes: -1, GPUs: -1}
		t.header = make(map[string]bool)
	}
	s := strings.TrimSpace(line)
	if s == "" || strings.Trim(s, "=") == "" {
		return true
	}
	if known, ok := t.head(s); known {
		return ok
	}
	if t.sentence(s) {
		t.known++
		return true
	}
	if t.section == "job" && t.jobRow(s) {
		return true
	}
	if t.table && t.section == "comms" && t.row(s) {
		return true
	}
	if t.section != "" && strings.HasPrefix(line, " ") && len(line) < 400 && t.known > 0 {
		if len(t.report.Notes) < maxNotes {
			t.report.Notes = append(t.report.Notes, s)
		}
		return true
	}
	return false
}

// Report is what was read, nil if none of the lines was of a report.
func (t *TextReader) Report() *Report {
	if t.report == nil || t.known == 0 {
		return nil
	}
	for _, c := range t.raw {
		if c.Size == 0 { // a part without the table
			for _, levels := range c.Counts {
				n := 0
				for _, l := range levels {
					n += l.N
				}
				c.Size = max(c.Size, n)
			}
		}
	}
	t.report.Communicators = t.report.Communicators[:0]
	for _, c := range t.raw {
		if c.Comms > 0 || c.Hash != "" {
			t.report.Communicators = append(t.report.Communicators, *c)
		}
	}
	return t.report
}

// head takes the lines that head a part. The second result is false for one that a report has once, when it comes again.
func (t *TextReader) head(s string) (known, ok bool) {
	r := t.report
	switch {
	case strings.HasPrefix(s, "NCCL version ") && strings.Contains(s, " compiled with CUDA "):
		if t.known > 0 {
			return true, false
		}
		r.NCCLVersion, _, _ = strings.Cut(strings.TrimPrefix(s, "NCCL version "), " ")
	case strings.HasPrefix(s, "CUDA runtime version "):
		if _, err := fmt.Sscanf(s, "CUDA runtime version %d, driver version %d", &r.CUDARuntime, &r.CUDADriver); err != nil {
			return false, false
		}
	case s == "Job summary":
		if t.section != "" {
			return true, false
		}
		t.section = "job"
	case strings.HasPrefix(s, "Communicators..."):
		if t.table {
			return true, false
		}
		t.section = "comms"
	case strings.HasPrefix(s, "Group ") && Begins(s):
		if t.table {
			return true, false
		}
		t.section, t.table = "comms", true
	case strings.HasPrefix(s, "#  in group"), s == "No communicator data collected!":
		return true, true
	case s == "Errors", s == "Warnings":
		t.section, t.comm, t.level, t.list = strings.ToLower(s), nil, nil, nil
		return true, true // these words alone may come from anywhere
	case s == "INCOMPLETE", s == "DEAD", s == "TIMEOUT":
		t.comm, t.level, t.dead, t.list = nil, nil, s == "DEAD", &r.Incomplete
		if t.dead {
			t.list = &r.Dead
		}
	case strings.HasPrefix(s, "#"):
		return t.commSection(s)
	default:
		return false, false
	}
	t.known++
	return true, true
}

// section reads "#0-1 (27a079b828ff1a75) MISMATCH".
func section(s string) (group, index int, hash, word string, ok bool) {
	id, rest, ok := strings.Cut(strings.TrimPrefix(s, "#"), " (")
	g, i, ok2 := strings.Cut(id, "-")
	hash, word, ok3 := strings.Cut(rest, ") ")
	group, err := strconv.Atoi(g)
	index, err2 := strconv.Atoi(i)
	if !ok || !ok2 || !ok3 || errors.Join(err, err2) != nil || group < 0 || index < 0 || !isHex(hash) {
		return 0, 0, "", "", false
	}
	switch word = strings.TrimSpace(word); word {
	case "MISMATCH", "INCOMPLETE", "ERROR":
		return group, index, hash, word, true
	}
	return 0, 0, "", "", false
}

func isHex(s string) bool {
	s = strings.TrimPrefix(s, "0x")
	return s != "" && len(s) <= 16 && strings.Trim(strings.ToLower(s), "0123456789abcdef") == ""
}

func (t *TextReader) commSection(s string) (known, ok bool) {
	group, index, hash, word, ok := section(s)
	if !ok {
		return false, false
	}
	key := hash + word + strconv.Itoa(group) + "-" + strconv.Itoa(index)
	if t.header[key] || len(t.header) > maxComms {
		return true, false
	}
	t.header[key] = true
	if t.section == "" || t.section == "comms" || t.section == "job" {
		t.section = "warnings"
	}
	t.known++
	t.comm, t.level, t.list, t.op = t.communicator(group, hash, word), nil, nil, ""
	return true, true
}

// communicator is the one with this hash. One of a group of several is taken out of its group, since it is unlike them now.
func (t *TextReader) communicator(group int, hash, word string) *Communicator {
	var row *Communicator
	for _, c := range t.raw {
		if c.Hash == hash && c.Group == group {
			c.addError(word)
			return c
		}
		if c.Hash == "" && c.Group == group && c.Comms > 0 {
			row = c
		}
	}
	c := &Communicator{Group: group, Comms: 1, Status: "UNKNOWN"}
	switch {
	case row != nil && row.Comms == 1:
		c = row
	case row != nil:
		row.Comms--
		c.Size, c.Status, c.Errors = row.Size, row.Status, row.Errors
	}
	c.Hash = hash
	c.addError(word)
	if c != row {
		t.raw = append(t.raw, c)
	}
	return c
}

func (c *Communicator) addError(word string) {
	if c.Errors == "" || c.Errors == "OK" {
		c.Errors = word
	} else if !slices.Contains(strings.Split(c.Errors, ","), word) {
		c.Errors += "," + word
	}
}

// row takes a line of the table: group, communicators, nodes, ranks per node (may be a range), ranks per communicator, ranks, status, errors.
func (t *TextReader) row(s string) bool {
	f := strings.Fields(s)
	if len(f) < 8 || len(t.raw) >= maxComms {
		return false
	}
	var n [6]int
	for i := range n {
		if i == 3 {
			if strings.Trim(f[3], "0123456789-") != "" {
				return false
			}
			continue
		}
		var err error
		if n[i], err = strconv.Atoi(f[i]); err != nil || n[i] < 0 || n[i] > 1<<31-1 {
			return false
		}
	}
	t.known++
	t.raw = append(t.raw, &Communicator{Group: n[0], Comms: n[1], Size: n[4], Status: f[6], Errors: strings.Join(f[7:], "")})
	return true
}

// jobRow takes the tables of the job summary; only totals are kept.
func (t *TextReader) jobRow(s string) bool {
	f := strings.Fields(s)
	switch {
	case strings.HasPrefix(s, "Nodes "), strings.HasPrefix(s, "Processes "):
		t.columns = f
		return true
	case strings.Contains(s, "per node"), strings.Contains(s, "per process"), strings.HasPrefix(s, "(total)"):
		if strings.Contains(s, "per node") && !strings.HasPrefix(s, "(total)") {
			t.columns = nil // how they are spread; the totals follow
		}
		return true
	case strings.HasPrefix(s, "The outlier node"), strings.HasPrefix(s, "Node "):
		if strings.HasPrefix(s, "Node ") && len(t.report.Notes) < maxNotes {
			t.report.Notes = append(t.report.Notes, s)
		}
		return true
	}
	var n []int
	for _, w := range f {
		v, err := strconv.Atoi(w)
		if err != nil || v < 0 || len(n) > 8 {
			return false
		}
		n = append(n, v)
	}
	if len(n) > 0 && len(n) == len(t.columns) && t.columns[0] == "Nodes" && (len(n) == 5 || len(n) == 3) {
		t.report.Nodes, t.report.Processes, t.report.GPUs = n[0], n[len(n)-2], n[len(n)-1]
		t.columns = nil
	}
	return len(n) > 0
}

// ReadText reads all text reports of a stream; what stands between them is passed over.
func ReadText(r io.Reader) ([]*Report, error) {
	var out []*Report
	var t *TextReader
	end := func() {
		if t != nil {
			if rep := t.Report(); rep != nil {
				out = append(out, rep)
			}
		}
		t = nil
	}
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 64<<10), maxLine)
	for in.Scan() {
		line := in.Text()
		if t != nil && !t.Line(line) {
			end()
		} else if t != nil {
			continue
		}
		if Begins(line) {
			t = &TextReader{}
			t.Line(line)
		}
	}
	end()
	return out, in.Err()
}
