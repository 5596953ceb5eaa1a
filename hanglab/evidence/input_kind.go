package evidence

import (
	"bytes"
	"path/filepath"
	"strings"
)

// headBytes is how much of an input decides what it is.
const headBytes = 4096

// Kinds of inputs that are read. All others are named and passed over.
const (
	kindEmpty      = "empty"
	kindPickle     = "pickle"
	kindFlightJSON = "flight_json"
	kindJSON       = "json"
	kindLog        = "log"
)

// magics are the first bytes of formats.
var magics = []struct{ bytes, kind string }{
	{"\x1f\x8b", "gzip"}, {"BZh", "bzip2"}, {"PK\x03\x04", "zip"}, {"PK\x05\x06", "zip"}, {"\xfd7zXZ\x00", "xz"}, {"\x28\xb5\x2f\xfd", "zstd"}, {"\x04\x22\x4d\x18", "lz4"},
	{"\x7fELF", "binary"}, {"\x89PNG", "picture"}, {"\xff\xd8\xff", "picture"}, {"GIF8", "picture"}, {"%PDF", "document"}, {"SQLite format", "database"}, {"\x93NUMPY", "array"}, {"\x89HDF", "array"},
}

// sniff tells what an input is by its first bytes.
func sniff(head []byte) string {
	if len(head) == 0 {
		return kindEmpty
	}
	for _, m := range magics {
		if bytes.HasPrefix(head, []byte(m.bytes)) {
			return m.kind
		}
	}
	if isTar(head) {
		return "tar"
	}
	if head[0] == 0x80 && (len(head) == 1 || head[1] >= 2 && head[1] <= 5) {
		return kindPickle
	}
	if isBinary(head) {
		return "binary"
	}
	return sniffText(bytes.TrimLeft(head, "\x00\xef\xbb\xbf \t\r\n"))
}

// isTar checks the sum of a header, which old archives without a magic have as well.
func isTar(head []byte) bool {
	if len(head) < 512 || head[0] == 0 {
		return false
	}
	want, sum := int64(0), int64(0)
	for _, c := range bytes.Trim(head[148:156], " \x00") {
		if c < '0' || c > '7' {
			return false
		}
		want = want*8 + int64(c-'0')
	}
	for i, c := range head[:512] {
		if i >= 148 && i < 156 {
			c = ' '
		}
		sum += int64(c)
	}
	return sum == want
}

// isBinary tells what is not text. Runs of zero bytes are left in logs by rotation and by crashes.
func isBinary(head []byte) bool {
	odd, seen := 0, 0
	for _, c := range head {
		if c == 0 {
			continue
		}
		seen++
		if c < 0x20 && c != '\n' && c != '\r' && c != '\t' && c != 0x1b && c != '\b' && c != '\f' {
			odd++
		}
	}
	if seen == 0 {
		return true
	}
	return odd*20 > seen || seen < len(head) && seen*4 < len(head) && bytes.IndexByte(head, '\n') < 0
}

// flightKeys are in dumps and in nothing else; flightTops stand at the top of one.
var flightKeys = []string{`"pg_config"`, `"pg_status"`, `"comm_lib_version"`, `"hccl_version"`, `"collective_seq_id"`, `"profiling_name"`, `"p2p_seq_id"`}

// past are texts that tell of a run but are no evidence of it: what an analyser said, and the laboratory's own account, which knows the answer.
var past = []struct{ begins, kind string }{
	{"first independent cause: ", "timeline"}, {"nothing went wrong\n", "timeline"},
	{"Not all ranks joining collective", "fr_trace"}, {"internal record id:", "fr_trace"}, {"Fault ranks: ", "planted"},
	{"loaded ", "fr_trace"}, {"Collective sequence number: ", "fr_trace"}, {"We cannot decide what's wrong with this collective", "fr_trace"}, {"Input/output mismatch in the collective", "fr_trace"},
	{"<!DOCTYPE", "page"}, {"<!doctype", "page"}, {"<html", "page"}, {"<?xml", "xml"},
}

func sniffText(text []byte) string {
	if len(text) == 0 {
		return kindLog
	}
	for _, p := range past {
		if bytes.HasPrefix(text, []byte(p.begins)) {
			if p.begins == "loaded " && !bytes.Contains(text, []byte(" files in ")) {
				continue
			}
			return p.kind
		}
	}
	if bytes.HasPrefix(text, []byte("Traceback")) && bytes.Contains(text, []byte("flight_recorder/")) || bytes.Contains(text, []byte("\ncollective state: ")) && bytes.Contains(text, []byte("expected ranks: {")) {
		return "fr_trace"
	}
	if text[0] != '{' && text[0] != '[' {
		return kindLog
	}
	if containsAny(text, flightKeys...) && bytes.IndexByte(text, '"') < 16 {
		return kindFlightJSON
	}
	if bytes.HasPrefix(text, []byte(`{"version"`)) && containsAny(text, `"entries"`, `"nccl_version"`) || bytes.HasPrefix(text, []byte("{\n")) && containsAny(text, `"entries"`) && containsAny(text, `"nccl_version"`) {
		return kindFlightJSON
	}
	if text[0] == '{' && bytes.Contains(text, []byte(`"scenario"`)) && bytes.Contains(text, []byte(`"engine"`)) && bytes.Contains(text, []byte(`"outcome"`)) {
		return "run"
	}
	return kindJSON
}

// otherNames are endings of what is written by or for people: it may quote every line that a hang leaves behind.
var otherNames = map[string]string{
	".md": "document", ".rst": "document", ".html": "page", ".htm": "page", ".py": "source", ".go": "source", ".c": "source", ".cc": "source", ".cpp": "source", ".cu": "source",
	".h": "source", ".sh": "source", ".yaml": "settings", ".yml": "settings", ".toml": "settings", ".ini": "settings", ".cfg": "settings", ".csv": "table", ".tsv": "table", ".ipynb": "document",
	".xml": "xml", ".svg": "picture", ".png": "picture", ".pdf": "document",
}

// kindByName names what a folder or archive has beside evidence; "" where the content decides.
func kindByName(name string) string {
	base := strings.ToUpper(memberBase(name))
	for _, s := range []string{"README", "LICENSE", "COPYING", "NOTICE", "MAKEFILE", "CHANGELOG"} {
		if strings.HasPrefix(base, s) {
			return "document"
		}
	}
	return otherNames[strings.ToLower(filepath.Ext(base))]
}
