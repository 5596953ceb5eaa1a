package links

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/internal/bindtest"
)

// TestMain chooses the engine and fails when a test has left a handle behind.
func TestMain(m *testing.M) {
	if bindtest.Native() {
		if err := cuda.Load(cuda.Options{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			if os.Getenv("REQUIRE_GPU") != "" {
				os.Exit(1)
			}
			os.Exit(0)
		}
	} else {
		cuda.UseHost(3)
	}
	code := m.Run()
	if left := cuda.Live(); len(left) > 0 && code == 0 {
		fmt.Fprintln(os.Stderr, "not destroyed:", left)
		code = 1
	}
	os.Exit(code)
}

func options() Options {
	return Options{Bytes: 1 << 20, Repetitions: 3, Deadline: 30 * time.Second, Machine: func() Machine { return Machine{NVMLWhy: "a test"} }}
}

// TestRun measures everything between two devices, and finds each figure once, with its samples and its data right.
func TestRun(t *testing.T) {
	if n, err := cuda.DeviceCount(); err != nil || n < 2 {
		t.Skip("needs two devices", err)
	}
	o := options()
	o.Devices = 2
	steps := 0
	o.Progress = func(done, total int, what string) {
		if done != steps || what == "" || total <= done {
			t.Errorf("progress %d of %d %q, want step %d", done, total, what, steps)
		}
		steps++
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	type key struct {
		from, to string
		method   Method
		both     bool
	}
	seen := map[key]int{}
	for _, m := range r.Measured {
		seen[key{m.From, m.To, m.Method, m.Both}]++
		if m.Wrong == nil || *m.Wrong != 0 || len(m.Samples) != 3 || m.Copies < 1 {
			t.Errorf("%s: %+v", m.way(), m)
		}
		rate, late := m.GBs != nil && *m.GBs > 0 && *m.MinGBs <= *m.GBs && *m.GBs <= *m.MaxGBs, m.LatencyUS != nil && *m.LatencyUS > 0 && *m.MinUS <= *m.LatencyUS && *m.LatencyUS <= *m.MaxUS
		if rate == late || m.Both != (m.TotalGBs != nil) {
			t.Errorf("%s: a rate %t, a latency %t, total %v", m.way(), rate, late, m.TotalGBs)
		}
	}
	want := []key{}
	for _, g := range []string{"GPU0", "GPU1"} {
		want = append(want, key{g, g, CopyEngine, false}, key{g, g, KernelCopy, false})
		for _, w := range [][2]string{{"host", g}, {g, "host"}} {
			want = append(want, key{w[0], w[1], CopyEngine, false}, key{w[0], w[1], CopyEngine, true}, key{w[0], w[1], SmallCopy, false})
		}
	}
	peer := *r.Pairs[0].Peer
	for _, w := range [][2]string{{"GPU0", "GPU1"}, {"GPU1", "GPU0"}} {
		want = append(want, key{w[0], w[1], CopyEngine, false}, key{w[0], w[1], CopyEngine, true}, key{w[0], w[1], SmallCopy, false})
		if peer {
			for _, method := range []Method{KernelRead, KernelWrite} {
				want = append(want, key{w[0], w[1], method, false}, key{w[0], w[1], method, true})
			}
			want = append(want, key{w[0], w[1], FlagPing, false})
		}
	}
	for _, k := range want {
		if seen[k] != 1 {
			t.Errorf("%+v was measured %d times", k, seen[k])
		}
		delete(seen, k)
	}
	if len(seen) != 0 {
		t.Errorf("not asked for: %v", seen)
	}
	// Both methods to the peer, and the copy engine to and from the host: each with alpha and beta.
	models := 4
	if peer {
		models += 2 + 2
	} else {
		models += 2
	}
	if len(r.Model) != models || slices.ContainsFunc(r.Model, func(m Model) bool { return m.AlphaUS == nil || m.BetaGBs == nil }) {
		t.Errorf("%d models, want %d: %+v", len(r.Model), models, r.Model)
	}
	roundTrip(t, r)
}

// roundTrip: what is written as JSON reads back as the same, and the text has a row a device in lines that line up.
func roundTrip(t *testing.T, r *Report) {
	t.Helper()
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(&back)
	if err != nil || !bytes.Equal(raw, again) {
		t.Errorf("the JSON does not read back: %v\n%s\n%s", err, raw, again)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"copy engine, one way", "kernel reads far memory", "latency between kernels", "host memory (page-locked)", "the GPU's own memory", "data: right in all of"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text does not have %q:\n%s", want, b.String())
		}
	}
}

// TestWrongData: one element that is changed on the way is found, in every kind of way, and leads to a fault.
func TestWrongData(t *testing.T) {
	o := options()
	o.Devices, o.Repetitions = 2, 1
	if n, err := cuda.DeviceCount(); err != nil || n < 2 {
		t.Skip("needs two devices", err)
	}
	r, err := describe(&o)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{opts: o, spoil: true}
	if err := l.run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for _, m := range r.Measured {
		if m.Method != FlagPing && (m.Wrong == nil || *m.Wrong != 1) {
			t.Errorf("%s: one element was spoilt, found %v", m.way(), m.Wrong)
		}
	}
	if !r.WrongData() || r.Faults() == 0 {
		t.Errorf("wrong data %t, faults %d", r.WrongData(), r.Faults())
	}
}

// TestStale: copies that do nothing leave poison, and all of it is wrong.
func TestStale(t *testing.T) {
	o := options()
	o.Devices, o.Repetitions = 1, 1
	r, err := describe(&o)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{opts: o}
	if err := l.open(r, Machine{}); err != nil {
		t.Fatal(err)
	}
	g := l.gpus[0]
	x := lane{gpu: g, src: place{g, uint64(g.src)}, dst: place{g, uint64(g.dst)}, bytes: o.Bytes, move: func(cuda.Stream) error { return nil }}
	got, err := l.measure([]lane{x}, 1, true)
	if err != nil || got[0].wrong != uint64(o.Bytes/8) {
		t.Errorf("%d elements wrong, want %d: %v", got[0].wrong, o.Bytes/8, err)
	}
	if err := l.close(); err != nil {
		t.Error(err)
	}
}

// TestPingStops: without an answer the ping-pong ends by its fuse and says so.
func TestPingStops(t *testing.T) {
	if n, err := cuda.DeviceCount(); err != nil || n < 2 {
		t.Skip("needs two devices", err)
	}
	o := options()
	o.Devices, o.Repetitions, o.Deadline = 2, 1, 2*time.Second
	r, err := describe(&o)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{opts: o, what: "ping", deaf: true}
	if err := l.open(r, Machine{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.connect(l.gpus[0], l.gpus[1]); err != nil {
		t.Fatal(err)
	}
	_, err = l.ping(l.gpus[0], l.gpus[1])
	var late *TimeoutError
	if err == nil || errors.As(err, &late) || !strings.Contains(err.Error(), "stopped arriving") {
		t.Errorf("got %v", err)
	}
	if err := l.close(); err != nil {
		t.Error(err)
	}
}

func TestUsage(t *testing.T) {
	n, err := cuda.DeviceCount()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(o *Options){
		"too many devices": func(o *Options) { o.Devices = n + 1 },
		"below zero":       func(o *Options) { o.Devices = -1 },
		"no bytes":         func(o *Options) { o.Bytes = 0 },
		"no repetition":    func(o *Options) { o.Repetitions = 0 },
		"no deadline":      func(o *Options) { o.Deadline = 0 },
		"pair with itself": func(o *Options) { o.Pairs = [][2]int{{0, 0}} },
		"pair far away":    func(o *Options) { o.Pairs = [][2]int{{0, n}} },
	} {
		o := options()
		change(&o)
		if r, err := Run(t.Context(), o); !errors.Is(err, ErrUsage) || r != nil {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}

// TestPairs: only the devices of the pairs asked for take part.
func TestPairs(t *testing.T) {
	if n, err := cuda.DeviceCount(); err != nil || n < 3 {
		t.Skip("needs three devices", err)
	}
	o := options()
	o.Pairs, o.Repetitions = [][2]int{{2, 0}}, 1
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.GPUs) != 2 || r.GPUs[0].ID != "GPU0" || r.GPUs[1].ID != "GPU2" || len(r.Pairs) != 1 || r.Pairs[0].A != 0 || r.Pairs[0].B != 2 {
		t.Errorf("%+v, %+v", r.GPUs, r.Pairs)
	}
}

// TestInterrupt: what was measured before the interrupt is kept, and everything is freed.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := options()
	o.Devices = 1
	o.Progress = func(done, total int, _ string) {
		if done == 1 {
			cancel()
		}
	}
	r, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) || r == nil || len(r.Measured) != 2 || r.Ended == "" {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestTooLarge: a size that does not fit says what would be needed.
func TestTooLarge(t *testing.T) {
	o := options()
	o.Devices, o.Bytes = 1, 1<<60
	r, err := Run(t.Context(), o)
	if err == nil || r == nil || r.Ended == "" || !strings.Contains(err.Error(), "--size") {
		t.Errorf("%v", err)
	}
}
