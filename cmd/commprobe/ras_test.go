package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/commprobe/commprobe/bench"
)

// rasJob answers as a job of NCCL 2.29 does: sample n has counts[n] of its ranks, the last again and again.
func rasJob(t *testing.T, counts ...[]int) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var asked atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			in := bufio.NewScanner(c)
			for in.Scan() {
				switch command := in.Text(); {
				case strings.HasPrefix(command, "CLIENT PROTOCOL"):
					fmt.Fprintln(c, "SERVER PROTOCOL 2")
				case command == "VERBOSE STATUS":
					n := min(int(asked.Add(1)), len(counts)) - 1
					fmt.Fprint(c, rasJSON(counts[n]))
					_ = c.Close()
				default:
					fmt.Fprintln(c, "OK")
				}
			}
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

func rasJSON(counts []int) string {
	var ranks []string
	for r, n := range counts {
		ranks = append(ranks, fmt.Sprintf(`{"rank":%d,"host":"192.0.2.7","pid":%d,"cuda_dev":%d,"nvml_dev":%d,"status":{"init_state":0},"collective_counts":{"AllReduce":%d}}`, r, 100+r, r, r, n))
	}
	return fmt.Sprintf(`{"nccl_version":"2.29.1","communicators":[{"hash":"0xae94423cfbb2ef4a","size":%d,"ranks":[%s],"missing_ranks":[]}],"ras":{}}`, len(counts), strings.Join(ranks, ","))
}

func TestRAS(t *testing.T) {
	t.Parallel()
	stuck, moving, equal := [][]int{{7, 7, 6, 7}}, [][]int{{7, 7, 6, 7}, {9, 9, 9, 9}}, [][]int{{5, 5}}
	for _, tt := range []struct {
		name   string
		counts [][]int
		args   []string
		code   int
		want   []string
	}{
		{"a rank is behind", stuck, nil, bench.ExitFindings, []string{"ALARM", "AllReduce: rank 2 at 6, ranks 0-1,3 at 7, and none moved", "behind rank 2: process 102 on 192.0.2.7, GPU 2", "AllReduce 7 x3, 6 x1 > 7 x3, 6 x1"}},
		{"it moves", moving, nil, bench.ExitOK, []string{"no alarm: the job moves"}},
		{"idle", equal, nil, bench.ExitOK, []string{"no alarm: nothing stands still that should not", "frozen"}},
		{"should work", equal, []string{"--working"}, bench.ExitFindings, []string{"ALARM", "launched everywhere"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := inProcess(append([]string{"ras", rasJob(t, tt.counts...), "--interval", "0.01"}, tt.args...)...)
			if f.code != tt.code || f.stderr != "" {
				t.Errorf("exit status %d, want %d: %s", f.code, tt.code, f.stderr)
			}
			has(t, f.stdout, append(tt.want, "not calls that are complete")...)
		})
	}
}

func TestRASJSON(t *testing.T) {
	t.Parallel()
	f := inProcess("ras", rasJob(t, []int{7, 6}), "--interval", "0.01", "--json", "-", "--samples", "3")
	var doc struct {
		Format  string
		Samples []struct {
			NCCL string `json:"nccl_version"`
		}
		Comparison struct {
			Alarm    bool
			Findings []struct {
				Kind   string
				Behind []int
			}
		}
	}
	if err := json.Unmarshal([]byte(f.stdout), &doc); err != nil || f.code != bench.ExitFindings {
		t.Fatalf("exit status %d, %v", f.code, err)
	}
	if doc.Format != "commprobe ras 1" || len(doc.Samples) != 3 || doc.Samples[2].NCCL != "2.29.1" || !doc.Comparison.Alarm ||
		doc.Comparison.Findings[0].Kind != "stuck" || len(doc.Comparison.Findings[0].Behind) != 1 || doc.Comparison.Findings[0].Behind[0] != 1 {
		t.Errorf("%+v", doc)
	}
}

func TestRASNobody(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	f := inProcess("ras", addr)
	if f.code != bench.ExitNoDevice || f.stdout != "" {
		t.Errorf("exit status %d: %s", f.code, f.stdout)
	}
	has(t, f.stderr, addr, "older than 2.24", "NCCL_RAS_ENABLE=0", "NCCL_RAS_ADDR")
}

func TestRASUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--samples", "1"}, {"--interval", "-1"}, {"--timeout", "0"}, {"a:1", "b:2"}, {"--interval", "NaN"}} {
		if f := inProcess(append([]string{"ras"}, args...)...); f.code != bench.ExitUsage {
			t.Errorf("%v: exit status %d: %s", args, f.code, f.stderr)
		}
	}
}
