package topo

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// Input is what one file or pasted text holds: a graph, or matrices.
type Input struct {
	Graph    *Graph    `json:"graph,omitempty"`
	Matrices []*Matrix `json:"matrices,omitempty"`
	Notes    []Note    `json:"notes,omitempty"` // about the input as a whole; others are in the graph and the matrices
}

// AllNotes are the notes of the input, its graph and its matrices.
func (in *Input) AllNotes() []Note {
	out := append([]Note(nil), in.Notes...)
	if in.Graph != nil {
		out = append(out, in.Graph.Notes...)
	}
	for _, m := range in.Matrices {
		out = append(out, m.Notes...)
	}
	return out
}

// Limits of a text: what is longer is not a topology.
const (
	maxText     = 16 << 20
	maxLine     = 64 << 10
	maxTextLine = 100_000
)

// Read reads NCCL's topology XML, what nvidia-smi topo -m, -mp and -p2p print, lspci -tv, or the JSON of a Graph, and finds out from the content which it is. name stands in notes and
// errors. Text around a matrix does not matter: prompts, other output, comments with #.
func Read(r io.Reader, name string) (*Input, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxText+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(text) > maxText:
		return nil, fmt.Errorf("%s: longer than %d MiB: this is no topology of one node", name, maxText>>20)
	}
	switch head := firstText(text); {
	case xmlStart.Match(head):
		g, err := readXML(bytes.NewReader(text), name)
		if err != nil {
			return nil, err
		}
		return &Input{Graph: g}, nil
	case bytes.HasPrefix(head, []byte("{")):
		g, err := readJSON(text, name)
		if err != nil {
			return nil, err
		}
		return &Input{Graph: g}, nil
	}
	lines, notes := splitText(text, name)
	if g := readLspci(lines, name); g != nil {
		return &Input{Graph: g, Notes: notes}, nil
	}
	m, more := readMatrices(lines, name)
	if len(m) == 0 {
		return nil, fmt.Errorf("%s: %w", name, ErrNoTopology)
	}
	return &Input{Matrices: m, Notes: append(notes, more...)}, nil
}

// xmlStart is what NCCL's files and pieces of them begin with.
var xmlStart = regexp.MustCompile(`^</?(\?xml|!--|system|cpu|pci|gpu|nic|net|nvlink|c2c|graph)`)

// firstText skips blank lines, a byte order mark and lines with # before the content.
func firstText(text []byte) []byte {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	for {
		text = bytes.TrimLeft(text, " \t\r\n")
		if !bytes.HasPrefix(text, []byte("#")) {
			return text
		}
		_, rest, ok := bytes.Cut(text, []byte("\n"))
		if !ok {
			return nil
		}
		text = rest
	}
}

var (
	escapes  = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]|\x1b[=>]`)
	remains  = regexp.MustCompile(`\[[0-9;]{0,8}m`) // an escape whose first byte was lost on the way through a web page
	cellTags = regexp.MustCompile(`(?i)</t[hd]>\s*<t[hd][^>]*>|<t[hd][^>]*>|</t[hd]>`)
	tags     = regexp.MustCompile(`(?i)</?(table|tbody|thead|tr|pre|code|div|span|p|br)\b[^>]*>`)
)

// splitText makes clean lines: no colours, no carriage returns, no quotation marks of mail, no bars of tables.
func splitText(text []byte, name string) (lines []textLine, notes []Note) {
	sc := bufio.NewScanner(bytes.NewReader(text))
	sc.Buffer(nil, maxLine)
	n := 0
	for sc.Scan() {
		if n++; n > maxTextLine {
			notes = append(notes, Note{"too-long", fmt.Sprintf("%s:%d", name, n), "the text is longer than any topology; the rest is not read"})
			return lines, notes
		}
		lines = append(lines, textLine{n, cleanLine(sc.Text())})
	}
	if errors.Is(sc.Err(), bufio.ErrTooLong) {
		notes = append(notes, Note{"line-too-long", fmt.Sprintf("%s:%d", name, n+1), "a line is longer than any row of a matrix; reading stopped there"})
	}
	return lines, notes
}

func cleanLine(s string) string {
	s = strings.TrimRight(strings.ToValidUTF8(s, ""), "\r")
	if i := strings.LastIndexByte(s, '\r'); i >= 0 {
		s = s[i+1:] // a progress line before it was overwritten
	}
	s = escapes.ReplaceAllString(s, "")
	s = remains.ReplaceAllString(s, "")
	s = strings.NewReplacer("\u00a0", " ", "\u200b", "", "\ufeff", "", "&nbsp;", " ").Replace(s)
	if strings.Contains(s, "<") {
		s = tags.ReplaceAllString(cellTags.ReplaceAllString(s, "\t"), "")
	}
	trimmed := strings.TrimLeft(s, " ")
	for strings.HasPrefix(trimmed, "> ") || trimmed == ">" {
		s = strings.TrimPrefix(strings.TrimPrefix(trimmed, ">"), " ")
		trimmed = strings.TrimLeft(s, " ")
	}
	if strings.HasPrefix(trimmed, "|") && strings.Count(trimmed, "|") > 2 && !lspciStart.MatchString(s) {
		s = strings.ReplaceAll(strings.ReplaceAll(strings.Trim(trimmed, "| "), "PHB|NODE", "PHB\x00NODE"), "|", "\t")
		s = strings.ReplaceAll(s, "\x00", "|")
	}
	return s
}
