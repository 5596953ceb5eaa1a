package report

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sharedData is the folder of outputs from public threads, which stay outside the repository.
const sharedData = "../../../shared/data"

var ownRemark = regexp.MustCompile(`(?m)\A(?:# (?:source|note|fidelity|cause|expect):?.*\n)+`)

// readShared reads a file without the lines at its top that say where it comes from: a reader must not need them. Numbers of lines stay.
func readShared(t *testing.T, path string) (*Document, []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	remark := ownRemark.Find(data)
	plain := append(bytes.Repeat([]byte("\n"), bytes.Count(remark, []byte("\n"))), data[len(remark):]...)
	doc, err := Read(bytes.NewReader(plain), filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	return doc, data
}

// sharedFiles is what each file holds.
var sharedFiles = []struct {
	name string
	rows int
	runs string // collective, rows, ranks and how they were found, version of NCCL; of each run
	code string // of all warnings
}{
	{"nccltests_h200x2/all_gather.txt", 7, "all_gather 7 rows, 2 ranks by rank list, 2.28.9",
		""},
	{"nccltests_h200x2/ar.json", 8, "all_reduce 8 rows, 2 ranks by file, 2.28.9",
		"env-whole json-devices"},
	{"nccltests_h200x2/ar_check.txt", 8, "all_reduce 8 rows, 2 ranks by rank list, 2.28.9",
		""},
	{"nccltests_h200x2/ar_g2.txt", 30, "all_reduce 30 rows, 2 ranks by rank list, 2.28.9",
		"not-checked"},
	{"nccltests_h200x2/ar_graph.txt", 12, "all_reduce 12 rows, 2 ranks by rank list, 2.28.9",
		"not-checked"},
	{"nccltests_h200x2/ar_info.txt", 9, "all_reduce 9 rows, 2 ranks by rank list, 2.28.9",
		"nccl-log not-checked row-rejoined"},
	{"nccltests_h200x2/ar_mpi2.txt", 14, "all_reduce 14 rows, 2 ranks by rank list, 2.28.9",
		"not-checked"},
	{"nccltests_h200x2/ar_shm.txt", 9, "all_reduce 9 rows, 2 ranks by rank list, 2.28.9",
		"nccl-log not-checked"},
	{"nccltests_h200x2/ar_sym.txt", 12, "all_reduce 12 rows, 2 ranks by rank list, 2.28.9",
		"not-checked"},
	{"nccltests_h200x2/ar_t2.txt", 13, "all_reduce 13 rows, 2 ranks by rank list, 2.28.9",
		"not-checked"},
	{"nccltests_h200x2/graph.xml", 0, "",
		""},
	{"nccltests_h200x2/sendrecv.txt", 7, "sendrecv 7 rows, 2 ranks by rank list, 2.28.9",
		"in-place-not-checked"},
	{"nccltests_h200x2/topo.xml", 0, "",
		""},
	{"nccltests_public/a100_24ranks_step1M_issue119_tail.txt", 12, "all_reduce 12 rows, 24 ranks by busbw over algbw, -",
		"average-mismatch collective-inferred no-header"},
	{"nccltests_public/a100_allgather_bf16_step16M_issue1435_partial.txt", 7, "- 7 rows, 2 ranks by size over count, -",
		"collective-unknown no-footer"},
	{"nccltests_public/a100_gather_2x1_issue350_ncclinfo_interleaved.txt", 68, "gather 68 rows, 2 ranks by rank list, 2.16.5",
		"nccl-log no-footer reduced-max-bytes"},
	{"nccltests_public/a100_p4de_2x8_srun_label.txt", 8, "all_reduce 8 rows, 16 ranks by busbw over algbw, -",
		"collective-inferred no-footer"},
	{"nccltests_public/a100_sendrecv_8gpu_NA_inplace.txt", 4, "sendrecv 4 rows, unknown ranks, -",
		"collective-inferred in-place-not-checked no-footer"},
	{"nccltests_public/a40_sendrecv_2x1_issue214_partial.txt", 6, "sendrecv 6 rows, 2 ranks by rank list, -",
		"collective-inferred in-place-not-checked no-footer row-cut"},
	{"nccltests_public/allreduce_128gpu_error_column_issue176_partial.txt", 6, "all_reduce 6 rows, 92 to 262 ranks by busbw over algbw, -",
		"collective-inferred no-footer ranks-range"},
	{"nccltests_public/azure_badarg_minbytes.txt", 0, "",
		"bad-argument launcher-abort"},
	{"nccltests_public/azure_badgpus_stderr_interleaved_2.19.7.txt", 0, "all_reduce 0 rows, unknown ranks, 2.23.4",
		"exit-code failure-trace gpu-count launcher-abort other-text"},
	{"nccltests_public/azure_h100_1x8_J_report_v3.json", 1, "all_reduce 1 rows, 8 ranks by file, 2.23.4",
		"env-whole"},
	{"nccltests_public/azure_h100_1x8_J_report_v3.txt", 1, "all_reduce 1 rows, 8 ranks by file, 2.23.4",
		"env-whole"},
	{"nccltests_public/azure_mpirun_ppr_reject.txt", 0, "",
		"launch-refused"},
	{"nccltests_public/gb10_2.20.0_githash_dgxspark_pr103_partial.txt", 4, "all_reduce 4 rows, 2 ranks by rank list, 2.31.2",
		"no-footer"},
	{"nccltests_public/gb200_20racks_1440ranks_coreweave.txt", 6, "all_reduce 6 rows, 1440 ranks by rank list, -",
		"collective-inferred rank-list-cut"},
	{"nccltests_public/gh200_exclusive_process_issue369_partial.txt", 0, "all_reduce 0 rows, 8 ranks by rank list, 2.26.6",
		"cuda-failure"},
	{"nccltests_public/gtx1080_sendrecv_inplace_error_issue104.txt", 2, "sendrecv 1 rows, unknown ranks, -; sendrecv 1 rows, 2 ranks by rank list, -",
		"collective-inferred×2 in-place-error-void×2 no-footer×2 row-cut"},
	{"nccltests_public/h100_128x8_issue322_partial_then_cuda_error.txt", 5, "all_reduce 5 rows, 1011 to 1032 ranks by busbw over algbw, -",
		"collective-inferred failure-trace nccl-failure no-footer rank-list-cut ranks-range reduced-max-bytes"},
	{"nccltests_public/h100_1x8_indented_markdown.txt", 4, "all_reduce 4 rows, 8 ranks by rank list, -",
		"collective-inferred"},
	{"nccltests_public/h100_1x8_small_nccl2.29_issue2094.txt", 6, "all_reduce 6 rows, 8 ranks by busbw over algbw, -",
		"collective-inferred"},
	{"nccltests_public/h100_40ranks_timestamp_output_issue1368_partial.txt", 1, "all_reduce 1 rows, 40 to 41 ranks by busbw over algbw, -",
		"collective-inferred no-footer ranks-range"},
	{"nccltests_public/h100_4nodes_2.19.3_vs_2.20.3_issue1222_partial.txt", 5, "all_reduce 5 rows, 32 ranks by busbw over algbw, 2.19.3; - 0 rows, unknown ranks, 2.20.3",
		"collective-inferred no-footer×2 version-from-title×2"},
	{"nccltests_public/h100_64ranks_sharp_coreweave.txt", 5, "all_reduce 5 rows, 96 ranks by busbw over algbw, -",
		"collective-inferred config-mismatch other-text"},
	{"nccltests_public/h100_label_midline_issue1453_partial.txt", 10, "all_reduce 10 rows, 24 ranks by busbw over algbw, -",
		"collective-inferred no-footer no-header row-cut row-rejoined"},
	{"nccltests_public/h100_midline_nccl_info_issue1453_partial.txt", 0, "",
		"nccl-log row-cut"},
	{"nccltests_public/h100_p5_2x8_srun_label.txt", 32, "all_reduce 32 rows, 16 ranks by busbw over algbw, -",
		"collective-inferred no-footer"},
	{"nccltests_public/h100pcie_2gpu_nvlinkbridge_issue194_partial.txt", 2, "all_reduce 2 rows, 2 ranks by busbw over algbw, -",
		"collective-inferred nccl-log no-footer"},
	{"nccltests_public/h200_2x8_all_datatypes_2.18.3.txt", 36, "all_reduce 36 rows, 16 ranks by rank list, 2.30.4",
		"reduced-max-bytes"},
	{"nccltests_public/h200nvl_k8s_edited_single_half.txt", 1, "all_reduce 1 rows, 8 ranks by rank list, -",
		"average-mismatch collective-inferred"},
	{"nccltests_public/h20_alltoall_duplicate_zero_rows_deepep303_partial.txt", 10, "- 10 rows, 8 ranks by size over count, -",
		"collective-unknown no-footer no-header zero-size"},
	{"nccltests_public/h800_two_singletons_issue213_partial.txt", 0, "- 0 rows, 8 or more ranks by rank list, -",
		"no-footer rank-list-cut singletons"},
	{"nccltests_public/nccl1_format_issue120.txt", 7, "all_reduce 7 rows, 1 ranks by busbw over algbw, -",
		"collective-inferred milliseconds no-footer one-rank"},
	{"nccltests_public/nccl_tests_fork_json_pr318_partial.txt", 2, "alltoall 2 rows, 8 ranks by size over count, 2.26.6",
		"collective-inferred in-place-not-checked json-truncated launcher-remark row-cut"},
	{"nccltests_public/rccl_tests_jsonlines_pr93.txt", 3, "all_reduce 3 rows, 4 ranks by file, -",
		"half-missing"},
	{"nccltests_public/rtx4070ti_pastebin_dash_prefix.txt", 12, "all_reduce 12 rows, 2 ranks by rank list, -",
		"collective-inferred no-footer"},
	{"nccltests_public/rtx5090_alltoall_1gpu_issue287.txt", 1, "alltoall 1 rows, 1 ranks by rank list, -",
		"collective-inferred in-place-not-checked one-rank"},
	{"nccltests_public/rtx5090_socket_default_rep1.txt", 8, "all_reduce 8 rows, 2 ranks by rank list, 2.29.7",
		"shared-device"},
	{"nccltests_public/rtx5090_socket_default_rep2.txt", 8, "all_reduce 8 rows, 2 ranks by rank list, 2.29.7",
		"shared-device"},
	{"nccltests_public/rtx5090_socket_default_rep3.txt", 8, "all_reduce 8 rows, 2 ranks by rank list, 2.29.7",
		"shared-device"},
	{"nccltests_public/rtx5090_socket_nthreads4_rep1.txt", 8, "all_reduce 8 rows, 2 ranks by rank list, 2.29.7",
		"shared-device"},
	{"nccltests_public/rtx6000d_2x8_spectrumx_case1.txt", 24, "all_reduce 24 rows, 16 ranks by rank list, 2.30.3",
		"launcher-remark other-text"},
	{"nccltests_public/rtx6000d_2x8_spectrumx_case2_AR_on.txt", 24, "all_reduce 24 rows, 16 ranks by rank list, 2.30.3",
		"launcher-remark other-text"},
	{"nccltests_public/rtx_2nodes_wrong_nonzero_issue179_partial.txt", 5, "all_reduce 5 rows, 4 ranks by NCCL log, -",
		"collective-inferred nccl-log×2 no-footer wrong-data"},
	{"nccltests_public/uccl_allreduce_c0_NA_both_issue396_partial.txt", 6, "all_reduce 6 rows, 8 ranks by busbw over algbw, -",
		"collective-inferred no-footer not-checked"},
	{"nccltests_public/v100_2nodes_invalid_ordinal_issue165.txt", 0, "- 0 rows, unknown ranks, -",
		"cuda-failure exit-code failure-trace launcher-abort other-text"},
	{"nccltests_public/v100_allgather_4G_failed_issue37_oldformat.txt", 1, "- 1 rows, 8 ranks by size over count, -",
		"collective-unknown failed-check old-bandwidth wrong-data"},
	{"nccltests_public/v100_broadcast_NA_issue82_partial.txt", 1, "broadcast 1 rows, 2 ranks by rank list, 2.9.6",
		"collective-inferred nccl-log nccl-warn no-footer not-checked"},
	{"nccltests_public/v100_gist2019_ms_format.txt", 5, "all_reduce 5 rows, 2 ranks by rank list, 2.4.7",
		"collective-inferred milliseconds no-footer not-checked"},
	{"nccltests_public/v100_two_singletons_footers_issue27.txt", 0, "- 0 rows, unknown ranks, -",
		"singletons"},
}

func worldText(w World) string {
	switch {
	case w.Ranks > 0:
		return fmt.Sprintf("%d ranks by %s", w.Ranks, w.From)
	case w.Lo > 0:
		return fmt.Sprintf("%s ranks by %s", rangeOfRanks(w.Lo, w.Hi), w.From)
	}
	return "unknown ranks"
}

// codesOf lists the codes of all warnings, each with its number where that is more than one.
func codesOf(d *Document) string {
	counts := map[string]int{}
	for _, w := range d.Warnings {
		counts[w.Code]++
	}
	var codes []string
	for code, n := range counts {
		if n > 1 {
			code = fmt.Sprintf("%s×%d", code, n)
		}
		codes = append(codes, code)
	}
	slices.Sort(codes)
	return strings.Join(codes, " ")
}

func runsOf(d *Document) string {
	var runs []string
	for i := range d.Runs {
		r := &d.Runs[i]
		version, collective := "-", "-"
		if l := library(&r.Run.Environment, "nccl"); l != nil {
			version = l.Version
		}
		if len(r.Run.Config.Collectives) > 0 {
			collective = r.Run.Config.Collectives[0]
		}
		runs = append(runs, fmt.Sprintf("%s %d rows, %s, %s", collective, len(r.Run.Rows), worldText(r.World), version))
	}
	return strings.Join(runs, "; ")
}

// TestReadShared holds for every shared file what is in it: rows (counted with grep, not with this reader), runs with collective, ranks and
// version, and every warning.
func TestReadShared(t *testing.T) {
	if _, err := os.Stat(sharedData); errors.Is(err, fs.ErrNotExist) {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is missing; in CI it must be there", sharedData)
		}
		t.Skipf("%s is not on this machine", sharedData)
	}
	seen := map[string]bool{}
	for _, tt := range sharedFiles {
		seen[tt.name] = true
		t.Run(tt.name, func(t *testing.T) {
			doc, data := readShared(t, filepath.Join(sharedData, tt.name))
			if doc.Rows() != tt.rows {
				t.Errorf("%d rows, want %d", doc.Rows(), tt.rows)
			}
			if got := runsOf(doc); got != tt.runs {
				t.Errorf("runs\n %s, want\n %s", got, tt.runs)
			}
			if diff := cmp.Diff(tt.code, codesOf(doc)); diff != "" {
				t.Errorf("warnings (-want +got):\n%s%v", diff, doc.Warnings)
			}
			// The remarks at the top may name the collective, but add nothing else.
			whole, err := Read(bytes.NewReader(data), tt.name)
			if err != nil || whole.Rows() != tt.rows || len(whole.Runs) != len(doc.Runs) || len(whole.Warnings) != len(doc.Warnings) {
				t.Errorf("with the remarks at the top: %d rows, %s, %s, %v", whole.Rows(), runsOf(whole), codesOf(whole), err)
			}
			for i := range doc.Runs {
				checkRun(t, &doc.Runs[i])
			}
		})
	}
	files, err := filepath.Glob(filepath.Join(sharedData, "nccltests_*/*"))
	if err != nil || len(files) != len(sharedFiles) {
		t.Errorf("%d files, the table has %d; %v", len(files), len(sharedFiles), err)
	}
	for _, f := range files {
		if name := filepath.ToSlash(strings.TrimPrefix(f, filepath.Clean(sharedData)+"/")); !seen[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
}

// checkRun holds what is true of every run that was read.
func checkRun(t *testing.T, r *ReadRun) {
	t.Helper()
	if len(r.details) != len(r.Run.Rows) && r.Format != formatOwnJSON {
		t.Errorf("%d rows with %d details", len(r.Run.Rows), len(r.details))
	}
	if r.World.Hi != 0 && r.World.Lo > r.World.Hi || r.World.Ranks != r.Run.Config.World {
		t.Errorf("ranks %+v, config %d", r.World, r.Run.Config.World)
	}
	exact := r.Exact()
	for i := range r.Run.Rows {
		for _, inPlace := range []bool{false, true} {
			printed, got := halfOf(&r.Run.Rows[i], inPlace), halfOf(&exact.Rows[i], inPlace)
			if (printed == nil) != (got == nil) {
				t.Fatalf("row %d: a half comes or goes", i)
			}
			if printed == nil || i >= len(r.details) {
				continue
			}
			d := r.details[i].halfs[0]
			if inPlace {
				d = r.details[i].halfs[1]
			}
			// Only what rounding can hide may change.
			if math.Abs(float64(got.BusBW-printed.BusBW)) > 1.001*d.busbw.half+0.01*float64(printed.BusBW) {
				t.Errorf("row %d: busbw %v became %v", i, printed.BusBW, got.BusBW)
			}
		}
	}
	var b bytes.Buffer
	if err := WriteJSON(&b, r.Run); err != nil {
		t.Errorf("not writable: %v", err)
	}
}
