package watch

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the expected parts of testdata/*.txt")

// A script is blocks of commands, "----", and what they must give: the actions in order, then the state. Lines that begin with # are comments.
//
//	new rank=1 world=4 mode=1 op=4s      a new machine and monitor
//	4s tick                              a time and an event for the machine
//	4s monitor tick                      the same for the monitor
type script struct {
	t       *testing.T
	machine *Machine
	monitor *Monitor
	seen    map[string]bool
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	seen := map[string]bool{}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{t: t, seen: seen}
			got := s.run(string(text))
			if *update {
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(got, "\n")); d != "" {
				t.Errorf("%s (-file +machine; -update rewrites):\n%s", f, d)
			}
		})
	}
	for _, want := range everything() {
		if !seen[want] {
			t.Errorf("no script has %s", want)
		}
	}
}

// everything is what the scripts together must have: all events, modes, actions, kinds of lines, stages.
func everything() []string {
	var all []string
	for _, e := range []Event{InitBegun{}, InitDone{}, InitFailed{}, Enqueued{}, Started{}, Completed{}, AsyncError{}, DumpRequested{}, Dumped{},
		DumpDone{}, DumpFailed{}, Aborted{}, AllAborted{}, Phase{}, Tick{}, Finished{}, Beat{}} {
		all = append(all, reflect.TypeOf(e).String())
	}
	for _, k := range []ReportKind{OpTimeout, InitTimeout, CommError, InitError, Heard, OpLate, InitLate, DumpsMissing, DumpError, AbortHangs,
		OpenAtEnd, Untracked, RoundLate, Stuck} {
		all = append(all, "line "+string(k))
	}
	for m := ReportOnly; m <= ExitAtOnce; m++ {
		for s := Dumping; s <= Ended; s++ {
			if s == Ended && m == ReportOnly || s == Aborting && (m == ReportOnly || m == ExitAtOnce) {
				continue
			}
			all = append(all, fmt.Sprintf("%v in mode %d", s, int(m)))
		}
	}
	return append(all, "exit 1", "exit 4", "exit 5", "exit clean", "exit unclean")
}

func (s *script) run(text string) string {
	var out []string
	var commands []string
	expected := false // within the expected part, which ends with an empty line
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		switch {
		case expected:
			if line == "" {
				expected = false
				out = append(out, "")
			}
		case line == "----":
			out = append(out, "----")
			out = append(out, s.block(commands)...)
			commands, expected = nil, true
		default:
			if line != "" && !strings.HasPrefix(line, "#") {
				commands = append(commands, line)
			}
			out = append(out, line)
		}
	}
	if len(commands) > 0 {
		s.t.Errorf("commands without ----: %q", commands)
	}
	return strings.Join(out, "\n") + "\n"
}

func (s *script) block(commands []string) (out []string) {
	monitorOnly := true
	for _, c := range commands {
		f := fields(c)
		if f[0] == "new" {
			if err := s.create(args(f[1:])); err != nil {
				return []string{"error: " + err.Error()}
			}
			continue
		}
		at, err := time.ParseDuration(f[0])
		if err != nil {
			s.t.Fatalf("%q: %v", c, err)
		}
		step := s.machine.Step
		if f = f[1:]; f[0] == "monitor" {
			step, f = s.monitor.Step, f[1:]
		} else {
			monitorOnly = false
		}
		e := event(s.t, f[0], args(f[1:]))
		s.seen[reflect.TypeOf(e).String()] = true
		for _, a := range step(at, e) {
			out = append(out, s.show(a)...)
		}
		s.seen[fmt.Sprintf("%v in mode %d", s.machine.stage, int(s.machine.cfg.Mode))] = true
	}
	if monitorOnly {
		return append(out, fmt.Sprintf("monitor: dumping %t, ended %t", s.monitor.dumping, s.monitor.ended))
	}
	return append(out, s.state())
}

func (s *script) create(a map[string]string) (err error) {
	num := func(k string) int { n, _ := strconv.Atoi(a[k]); return n }
	dur := func(k string) time.Duration { d, _ := time.ParseDuration(a[k]); return d }
	c := Config{Rank: num("rank"), World: num("world"), Mode: Mode(num("mode")), Init: dur("init"), Op: dur("op"), Heartbeat: dur("heartbeat"),
		DumpWait: dur("dumpwait"), AbortWait: dur("abortwait"), MaxOpen: num("maxopen")}
	if s.machine, err = New(c); err != nil {
		return err
	}
	s.monitor, err = NewMonitor(c)
	return err
}

// fields splits at blanks outside quotes.
func fields(line string) (out []string) {
	quoted := false
	for _, f := range strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ' ' && !quoted
	}) {
		out = append(out, strings.ReplaceAll(f, `"`, ""))
	}
	return out
}

func args(list []string) map[string]string {
	a := map[string]string{}
	for _, f := range list {
		k, v, _ := strings.Cut(f, "=")
		a[k] = v
	}
	return a
}

func event(t *testing.T, name string, a map[string]string) Event {
	num := func(k string) int {
		if a[k] == "" {
			return 0
		}
		n, err := strconv.Atoi(a[k])
		if err != nil {
			t.Fatalf("%s %s=%s: %v", name, k, a[k], err)
		}
		return n
	}
	_, p2p := a["p2p"]
	_, remote := a["remote"]
	switch name {
	case "init-begun":
		return InitBegun{num("comm"), a["name"]}
	case "init-done":
		return InitDone{num("comm")}
	case "init-failed":
		return InitFailed{num("comm"), a["text"]}
	case "enqueued":
		return Enqueued{num("comm"), int64(num("seq")), uint64(num("id")), a["what"], p2p}
	case "started":
		return Started{uint64(num("id"))}
	case "completed":
		return Completed{uint64(num("id"))}
	case "async-error":
		return AsyncError{num("comm"), a["text"], remote}
	case "requested":
		return DumpRequested{num("from"), Reason{Kind: ReasonKind(a["kind"]), Rank: num("from"), Comm: a["comm"], Seq: int64(num("seq")), P2P: p2p, Text: a["text"]}}
	case "dumped":
		return Dumped{num("rank")}
	case "dump-done":
		return DumpDone{}
	case "dump-failed":
		return DumpFailed{a["text"]}
	case "aborted":
		return Aborted{num("comm")}
	case "all-aborted":
		return AllAborted{}
	case "phase":
		return Phase{a["text"]}
	case "tick":
		return Tick{}
	case "finished":
		return Finished{}
	case "beat":
		return Beat{}
	}
	t.Fatalf("no event %q", name)
	return nil
}

func (s *script) show(a Action) []string {
	switch a := a.(type) {
	case Report:
		s.seen["line "+string(a.Kind)] = true
		head := "report " + string(a.Kind)
		if a.Comm >= 0 {
			head += fmt.Sprintf(" comm=%d", a.Comm)
		}
		if a.Seq >= 0 {
			head += fmt.Sprintf(" seq=%d op=%d", a.Seq, a.Op)
		}
		if a.For > 0 {
			head += " for=" + a.For.String()
		}
		return []string{head, "  " + a.Line}
	case RequestDump:
		return []string{fmt.Sprintf("request-dump %s comm=%q seq=%d", a.Reason.Kind, a.Reason.Comm, a.Reason.Seq)}
	case Dump:
		return []string{fmt.Sprintf("dump because of rank %d: %s", a.Reason.Rank, a.Reason.Kind)}
	case Abort:
		return []string{fmt.Sprint("abort ", a.Comms)}
	case Exit:
		clean := "unclean"
		if a.Clean {
			clean = "clean"
		}
		s.seen["exit "+clean], s.seen[fmt.Sprint("exit ", a.Code)] = true, true
		return []string{fmt.Sprintf("exit %d %s because of rank %d: %s", a.Code, clean, a.Reason.Rank, a.Reason.Kind)}
	}
	s.t.Fatalf("unknown action %T", a)
	return nil
}

// state prints the machine: stage, then every communicator's counters (enqueued/started/completed) and open operations.
func (s *script) state() string {
	m := s.machine
	out := m.stage.String()
	for _, c := range m.sortedComms() {
		out += fmt.Sprintf(" | %d", c.id)
		if c.making {
			out += " in creation"
		}
		for i, n := range []Counters{c.coll, c.p2p} {
			if n != noneYet {
				out += fmt.Sprintf(" %s %d/%d/%d", []string{"coll", "p2p"}[i], n.Enqueued, n.Started, n.Completed)
			}
		}
	}
	var open []string
	for p := m.ops.oldest; p != nil; p = p.next {
		open = append(open, strconv.FormatUint(p.id, 10))
	}
	if len(open) > 0 {
		out += " | open " + strings.Join(open, " ")
	}
	if m.ops.extra > 0 {
		out += fmt.Sprintf(" | counted %d", m.ops.extra)
	}
	if slices.Contains([]Stage{Dumping, Collecting, Aborting}, m.stage) {
		out += " | until " + m.until.String()
	}
	return out
}
