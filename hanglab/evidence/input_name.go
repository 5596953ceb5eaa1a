package evidence

import (
	"path/filepath"
	"strconv"
	"strings"
)

// rankWords stand before a rank in the name of a log. Other numbers there are those of jobs, processes, dates.
var rankWords = []string{"global_rank", "rank", "trace", "dump", "proc", "process", "task", "trainer", "stderr", "stdout", "worker_rank", "gpu"}

// logRank finds the rank that a log belongs to in its name: "rank_3.log", "node02_5.out", "3.log", "attempt_0/3/stderr.log".
func logRank(name string) (int, bool) {
	base := memberBase(name)
	for _, ext := range []string{".gz", ".bz2", ".log", ".txt", ".out", ".err", ".stderr", ".stdout"} {
		base = strings.TrimSuffix(base, ext)
	}
	low := strings.ToLower(base)
	if i := strings.LastIndex(low, "rank"); i >= 0 {
		rest := strings.TrimLeft(low[i+len("rank"):], "_-.=")
		if n, rest, ok := leadingNumber([]byte(rest)); ok && n >= 0 && n < 1<<20 && endsRank(string(rest)) {
			return n, true
		}
	}
	if low == "stderr" || low == "stdout" || low == "error" { // torchrun --log-dir has a folder for each local rank
		dir := filepath.Dir(filepath.ToSlash(name))
		if strings.HasPrefix(filepath.Base(filepath.Dir(dir)), "attempt_") {
			return rankNumber(filepath.Base(dir))
		}
		return -1, false
	}
	if n, ok := rankNumber(low); ok {
		return n, true
	}
	head := strings.TrimRight(low, "0123456789")
	n, ok := rankNumber(low[len(head):])
	if !ok || head == low {
		return -1, false
	}
	word := strings.TrimRight(head, "_-.")
	for _, w := range rankWords {
		if word == w || strings.HasSuffix(word, "_"+w) || strings.HasSuffix(word, "-"+w) || strings.HasSuffix(word, "."+w) {
			return n, true
		}
	}
	if strings.HasPrefix(word, "node") && word != "node" && strings.HasSuffix(head, "_") { // node02_5
		return n, true
	}
	return -1, false
}

// endsRank tells what may follow a rank in a name: a sentence such as "rank0_is_stuck" speaks of a rank and is not its log.
func endsRank(rest string) bool {
	if rest == "" || rest[0] == '.' {
		return true
	}
	switch rest[1:] {
	case "out", "err", "log", "stdout", "stderr":
		return true
	}
	return strings.HasPrefix(rest[1:], "node") || strings.HasPrefix(rest[1:], "host") || strings.Trim(rest[1:], "0123456789") == ""
}

// rankNumber reads a number that may be a rank: job ids and pids are longer.
func rankNumber(s string) (int, bool) {
	if s == "" || len(s) > 5 || strings.Trim(s, "0123456789") != "" {
		return -1, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// dumpRank tells whether an empty file would have been a dump, and whose: its name ends in a number, and it is no log.
func dumpRank(name string) (int, bool) {
	base := strings.ToLower(memberBase(name))
	switch ext := filepath.Ext(base); ext {
	case ".log", ".txt", ".out", ".err", ".lock", ".pid", ".tmp", ".sock", ".pipe", ".done":
		return -1, false
	}
	for _, w := range []string{"log", "stdout", "stderr", "lock", "slurm", "nccl."} {
		if strings.Contains(base, w) {
			return -1, false
		}
	}
	return RankOfName(base)
}
