package flight

import (
	"bufio"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// WriteJSON writes the dump as PyTorch's HTTP handlers do: keys in alphabetical order, no stack frames, no entries where there are none,
// counters of a group as strings, 0 for a time that is not known, no white space. A duration that is no number is null. Its errors are those of
// WritePickle.
func (d *Dump) WriteJSON(w io.Writer) error {
	if err := d.check(); err != nil {
		return err
	}
	j := &jsonWriter{w: bufio.NewWriterSize(w, 32<<10)}
	j.open('{')
	j.pair("comm_lib_version", d.CommLibVersion)
	if len(d.Entries) > 0 {
		j.key("entries")
		j.open('[')
		for i := range d.Entries {
			j.entry(&d.Entries[i])
		}
		j.close(']')
	}
	j.key("nccl_comm_state")
	j.open('{')
	j.close('}')
	j.groups(d.Groups)
	j.status(d.Status)
	j.pair("version", d.version())
	j.close('}')
	return j.w.Flush() // bufio keeps the first error
}

type jsonWriter struct {
	w     *bufio.Writer
	comma bool // one is due before the next element
}

func (j *jsonWriter) groups(groups []Group) {
	sorted := slices.SortedFunc(slices.Values(groups), func(a, b Group) int { return strings.Compare(a.Name, b.Name) })
	j.key("pg_config")
	j.open('{')
	for _, g := range sorted {
		j.key(g.Name)
		j.open('{')
		j.pair("desc", g.Desc)
		j.pair("name", g.Name)
		j.pair("ranks", ranksText(g.Ranks))
		j.close('}')
	}
	j.close('}')
}

func (j *jsonWriter) status(status []GroupStatus) {
	byKey := map[string]GroupStatus{}
	keys := make([]string, 0, len(status))
	for _, s := range status {
		key := strconv.FormatInt(s.PGID, 10)
		byKey[key] = s
		keys = append(keys, key)
	}
	slices.Sort(keys)
	j.key("pg_status")
	j.open('{')
	for _, key := range keys {
		s := byKey[key]
		j.key(key)
		j.open('{')
		j.pair("last_completed_collective", strconv.FormatInt(s.LastCompleted, 10))
		j.pair("last_enqueued_collective", strconv.FormatInt(s.LastEnqueued, 10))
		j.pair("last_started_collective", strconv.FormatInt(s.LastStarted, 10))
		j.close('}')
	}
	j.close('}')
}

func (j *jsonWriter) entry(e *Entry) {
	j.open('{')
	j.int("collective_seq_id", e.CollectiveSeqID)
	if e.DurationMs != nil {
		j.float("duration_ms", *e.DurationMs)
	}
	j.texts("input_dtypes", e.InputDtypes)
	j.sizes("input_sizes", e.InputSizes)
	j.bool("is_p2p", e.IsP2P)
	j.int("op_id", e.OpID)
	j.texts("output_dtypes", e.OutputDtypes)
	j.sizes("output_sizes", e.OutputSizes)
	j.int("p2p_seq_id", e.P2PSeqID)
	j.int("pg_id", e.PGID)
	j.texts("process_group", []string{e.GroupName, e.GroupDesc})
	j.pair("profiling_name", e.ProfilingName)
	j.int("record_id", e.RecordID)
	j.bool("retired", e.Retired)
	j.pair("state", string(e.State))
	j.pair("thread_id", e.ThreadID)
	j.pair("thread_name", e.ThreadName)
	j.int("time_created_ns", e.TimeCreatedNs)
	j.int("time_discovered_completed_ns", orZero(e.TimeDiscoveredCompletedNs))
	j.int("time_discovered_started_ns", orZero(e.TimeDiscoveredStartedNs))
	j.int("timeout_ms", e.TimeoutMs)
	j.close('}')
}

func orZero(ns *int64) int64 {
	if ns == nil {
		return 0
	}
	return *ns
}

func (j *jsonWriter) sizes(key string, shapes [][]int64) {
	j.key(key)
	j.open('[')
	for _, shape := range shapes {
		j.open('[')
		for _, n := range shape {
			j.element(strconv.FormatInt(n, 10))
		}
		j.close(']')
	}
	j.close(']')
}

func (j *jsonWriter) texts(key string, values []string) {
	j.key(key)
	j.open('[')
	for _, v := range values {
		j.element(quote(v))
	}
	j.close(']')
}

func (j *jsonWriter) pair(key, value string) {
	j.key(key)
	j.element(quote(value))
}

func (j *jsonWriter) int(key string, value int64) {
	j.key(key)
	j.element(strconv.FormatInt(value, 10))
}

func (j *jsonWriter) bool(key string, value bool) {
	j.key(key)
	j.element(strconv.FormatBool(value))
}

// float keeps a decimal point in whole numbers, so that readers which tell the two apart see a float.
func (j *jsonWriter) float(key string, value float64) {
	j.key(key)
	if math.IsNaN(value) || math.IsInf(value, 0) {
		j.element("null")
		return
	}
	text := strconv.FormatFloat(value, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	j.element(text)
}

func (j *jsonWriter) key(name string) {
	j.element(quote(name))
	_ = j.w.WriteByte(':')
	j.comma = false
}

func (j *jsonWriter) open(bracket byte) {
	j.element(string(bracket))
	j.comma = false
}

func (j *jsonWriter) close(bracket byte) {
	_ = j.w.WriteByte(bracket)
	j.comma = true
}

func (j *jsonWriter) element(text string) {
	if j.comma {
		_ = j.w.WriteByte(',')
	}
	_, _ = j.w.WriteString(text)
	j.comma = true
}

// quote leaves < > & as they are (names have them: "nccl:send 0->3") and mends text that is no UTF-8.
func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string and a Builder cannot fail
	return strings.TrimSuffix(b.String(), "\n")
}
