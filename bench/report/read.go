package report

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
)

// Document is what Read found in one result file.
type Document struct {
	Name      string
	FirstLine string    // the first one that is not blank, at most 60 characters of it
	Formats   []string  // what was recognised, in order of appearance, e.g. "nccl-tests text"; empty: nothing
	Runs      []ReadRun // one for each start of a measuring program, also when it has no rows
	Warnings  []Warning // in order of lines
}

// Rows counts the rows of all runs.
func (d *Document) Rows() int {
	n := 0
	for i := range d.Runs {
		n += len(d.Runs[i].Run.Rows)
	}
	return n
}

// ReadRun is one run of a result file. What the file does not have is absent in Run: no ranks, no library, Config.World and Half.Iters 0, which
// no measurement has. Bandwidths are as printed; Exact has them with the precision of the time. Outcome.Status is "incomplete" where the
// file ends before the program did and does not say why.
type ReadRun struct {
	Run    *result.Run
	Format string
	Title  string // a line of text above the table that names it, e.g. "2.19.3"; "" = none
	Line   int    // where it begins
	World  World
	Footer *Footer // nil: there is none, the output is not complete

	details []rowDetail // one a row
	state   runState
}

// World is the number of ranks and how it was found.
type World struct {
	Ranks  int    // 0: not known, or several numbers are possible
	Lo, Hi int    // the range that rounding leaves when the number was solved for; Hi 0: no upper end
	Group  int    // ranks of one communicator, fewer than Ranks when they were split; 0: not known
	From   string // "rank list", "file", "NCCL log", "size over count", "busbw over algbw" or "unknown"
}

// Footer is what the program said at its end.
type Footer struct {
	OutOfBounds *int64   // row halves with wrong elements
	Failed      bool     // the verdict on them
	AvgBusBW    *float64 // GB/s, mean over all row halves
	BelowMinBW  bool     // the verdict on that, where a minimum was asked for
	Concluded   bool
}

// Severities of a Warning, as in result.Note.
const (
	Info  = "info"    // good to know when reading the figures
	Odd   = "warning" // figures are missing or may mislead
	Fault = "fault"   // the run failed or its data was wrong
)

// Warning is something odd in a result file.
type Warning struct {
	Line     int    // in the file, from 1
	Run      int    // index in Document.Runs, -1: the file as a whole
	Severity string // Info, Odd or Fault
	Code     string // short and stable, e.g. "no-footer"
	Text     string // what is odd and what it means
}

// Limits keep a hostile or broken file from taking the memory of the machine.
const (
	maxLine     = 64 << 10 // bytes looked at in a line of text
	maxDocument = 64 << 20 // bytes of one JSON document
	maxRows     = 1 << 20
	maxRuns     = 10000
	maxWarnings = 1000
	maxRankList = 1 << 17
	maxStray    = 3 // JSON documents that are no results: after them a brace is text
)

// Read takes any result file: text of nccl-tests from NCCL 1 on and of its relatives (rccl-tests, mscclpp, uccl), with whatever a launcher or a
// web page did to its lines; JSON of nccl-tests and rccl-tests; JSON, CSV and tables of this program. It goes by the shape of what it
// finds, never by the name, which is only for messages. A line that it cannot read is a warning and not the end. The error is one of r;
// what came before it is returned too.
func Read(r io.Reader, name string) (*Document, error) {
	p := &parser{doc: &Document{Name: name}, in: newLineReader(r), hosts: map[string]bool{}}
	err := p.readAll()
	p.finish()
	if err != nil {
		return p.doc, fmt.Errorf("read %s: %w", name, err)
	}
	return p.doc, nil
}

// parser goes through a file line by line.
type parser struct {
	doc   *Document
	in    *lineReader
	line  int // present line
	rows  int
	stray int // JSON documents that were no results

	cur     *ReadRun // run that lines belong to; nil: none has begun
	table   *csvTable
	lines   *ReadRun // run that JSON lines go to
	pending *pendingRow
	placed  []bool // order of placements named above the next table: true = in-place
	title   string
	hint    string     // collective named by a command line
	section string     // part of our own footer
	variant result.Row // what our own table says above rows: cycle, algorithm, protocol
	program result.Program
	engine  string
	ownNCCL string          // version that our own banner names, for all tables below it
	hosts   map[string]bool // names of hosts in NCCL's log
	nccl    string          // version of the library, from the line NCCL prints on its own

	logRanks int // of NCCL's log above the run that has not begun

	tallies []*tally
	begun   []*ReadRun
}

func (p *parser) readAll() error {
	for {
		raw, err := p.in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p.line = p.in.number
		text := cleanLine(raw)
		if p.doc.FirstLine == "" {
			p.doc.FirstLine = excerpt(strings.TrimSpace(text), 60)
		}
		if body := stripLabels(text); startsObject(body) && p.stray < maxStray {
			if err := p.object(body); err != nil {
				return err
			}
			continue
		}
		if p.in.partial {
			p.tally("long-line", Odd, p.line, "", func(n int, _ []string) string {
				return fmt.Sprintf("%s longer than %d bytes: the rest was not read", plural(n, "line"), maxLine)
			})
		}
		p.text(text)
	}
}

// excerpt is the first characters of s.
func excerpt(s string, most int) string {
	if len(s) <= most {
		return s
	}
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// object reads a JSON document that begins in the present line; one that is no result is read as text.
func (p *parser) object(first string) error {
	start := p.line
	data, err := p.in.gather(first)
	if err != nil {
		return err
	}
	if p.document(data, start) {
		return nil
	}
	p.stray++
	for i, line := range bytes.Split(data, []byte("\n")) {
		p.line = start + i
		p.text(cleanLine(line[:min(len(line), maxLine)]))
	}
	return nil
}

// begin makes a run that starts at the present line the current one.
func (p *parser) begin(format string) *ReadRun {
	run := &ReadRun{Format: format, Line: p.line, Run: &result.Run{Schema: result.Schema}}
	run.Run.Config.Modes.Cycles = 1
	run.Run.Config.Runs = 1
	if len(p.begun) < maxRuns {
		p.begun = append(p.begun, run)
	} else {
		p.tally("too-many", Odd, p.line, "", func(int, []string) string {
			return fmt.Sprintf("more than %d runs or %d rows in one file: the rest was not read", maxRuns, maxRows)
		})
	}
	if !slices.Contains(p.doc.Formats, format) {
		p.doc.Formats = append(p.doc.Formats, format)
	}
	run.state.hint = p.hint
	p.cur = run
	return run
}

// addRow appends a row with its details to run.
func (p *parser) addRow(run *ReadRun, row result.Row, d rowDetail) {
	if p.rows++; p.rows > maxRows {
		p.tally("too-many", Odd, p.line, "", func(int, []string) string {
			return fmt.Sprintf("more than %d runs or %d rows in one file: the rest was not read", maxRuns, maxRows)
		})
		return
	}
	run.Run.Rows = append(run.Run.Rows, row)
	run.details = append(run.details, d)
}

// finish checks each run as a whole and hands out what was counted.
func (p *parser) finish() {
	p.flushRow("the file ends")
	for i, run := range p.begun {
		c := checker{p: p, run: run, index: i}
		c.check()
	}
	for _, run := range p.begun {
		p.doc.Runs = append(p.doc.Runs, *run)
	}
	index := map[*ReadRun]int{}
	for i, run := range p.begun {
		index[run] = i
	}
	for _, t := range p.tallies {
		w := Warning{Line: t.line, Run: -1, Severity: t.severity, Code: t.code, Text: t.text(t.n, t.details)}
		if i, ok := index[t.run]; ok {
			w.Run = i
		}
		p.doc.Warnings = append(p.doc.Warnings, w)
	}
	slices.SortStableFunc(p.doc.Warnings, func(a, b Warning) int { return a.Line - b.Line })
	if len(p.doc.Warnings) > maxWarnings {
		left := len(p.doc.Warnings) - maxWarnings
		p.doc.Warnings = append(p.doc.Warnings[:maxWarnings:maxWarnings],
			Warning{Line: p.line, Run: -1, Severity: Odd, Code: "more-warnings", Text: fmt.Sprintf("%d more warnings are left out", left)})
	}
}

// tally is one warning for all lines of a kind: a log may have thousands of them.
type tally struct {
	code, severity, key string
	run                 *ReadRun
	line, n             int
	details             []string // distinct, at most maxDetails
	text                func(n int, details []string) string
}

const (
	maxDetails = 8
	maxDetail  = 300 // characters of each
)

// tally counts one more line with this code and text builder; detail is kept if it is new. All of one code in one run are one warning.
func (p *parser) tally(code, severity string, line int, detail string, text func(n int, details []string) string) {
	p.tallyKey(code, "", severity, line, detail, text)
}

// tallyKey makes a warning for each key of a code.
func (p *parser) tallyKey(code, key, severity string, line int, detail string, text func(n int, details []string) string) {
	detail = excerpt(detail, maxDetail)
	var found *tally
	for _, t := range p.tallies {
		if t.code == code && t.key == key && t.run == p.cur {
			found = t
			break
		}
	}
	if found == nil {
		if len(p.tallies) > maxWarnings+1 {
			return
		}
		found = &tally{code: code, key: key, severity: severity, run: p.cur, line: line, text: text}
		p.tallies = append(p.tallies, found)
	}
	found.n++
	if detail != "" && len(found.details) < maxDetails && !slices.Contains(found.details, detail) {
		found.details = append(found.details, detail)
	}
}

// lineReader hands out lines of bounded length.
type lineReader struct {
	r       *bufio.Reader
	number  int
	partial bool // the present line is longer than what next returned
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, maxLine)}
}

// next returns the next line without its end, or its first maxLine bytes; valid until the following call.
func (l *lineReader) next() ([]byte, error) {
	for l.partial {
		_, err := l.r.ReadSlice('\n')
		if l.partial = errors.Is(err, bufio.ErrBufferFull); err != nil && !l.partial {
			return nil, err
		}
	}
	line, err := l.r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		l.partial = true
	case errors.Is(err, io.EOF) && len(line) > 0:
	case err != nil:
		return nil, err
	}
	l.number++
	if l.number == 1 {
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

// gather collects a JSON document from its first line to the brace that closes it, to the end of the file, or to maxDocument bytes. What follows
// the brace in its line is dropped: a comma at most.
func (l *lineReader) gather(first string) ([]byte, error) {
	var balance braces
	data := []byte(first)
	for at := 0; ; {
		for ; at < len(data); at++ {
			if balance.step(data[at]) {
				return data[:at+1], nil
			}
		}
		if len(data) > maxDocument {
			return data, nil
		}
		chunk, err := l.r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(chunk) == 0:
			return data, nil
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		}
		if !l.partial {
			data = append(data, '\n')
			l.number++
		}
		l.partial = errors.Is(err, bufio.ErrBufferFull)
		data = append(data, bytes.TrimRight(chunk, "\r\n")...)
	}
}

// braces finds the end of a JSON document.
type braces struct {
	depth              int
	inString, escaping bool
}

// step takes one byte and says whether it closes the document.
func (b *braces) step(c byte) bool {
	switch {
	case b.escaping:
		b.escaping = false
	case b.inString && c == '\\':
		b.escaping = true
	case c == '"':
		b.inString = !b.inString
	case b.inString:
	case c == '{' || c == '[':
		b.depth++
	case c == '}' || c == ']':
		b.depth--
		return b.depth <= 0
	}
	return false
}
