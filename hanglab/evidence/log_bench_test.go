package evidence

import (
	"bufio"
	"bytes"
	"fmt"
	"testing"
)

// plainLog is lines of a training job of which none says anything.
func plainLog(size int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "2026-01-02 03:04:%02d,%03d INFO trainer.py:%d | throughput %d tokens/s, memory %d.%02d GiB reserved, learning rate %d.0e-05\n", i%60, i%1000, i%700, i*17, i%80, i%100, i%9)
		fmt.Fprintf(&b, "[rank%d]: Loading shard %d of 512 from the data set, prefetch queue has %d batches, worker seeds are fixed\n", i%8, i%512, i%32)
		fmt.Fprintf(&b, "DEBUG:datasets.loader:reading /data/corpus/part-%05d.parquet with offset %d and length %d\n", i%4096, i*4096, i*13)
	}
	return b.Bytes()
}

func readBench(b *testing.B, text []byte) {
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		c := newLogContext(&Evidence{}, "x", -1, 2026)
		if err := c.readLog(bufio.NewReaderSize(bytes.NewReader(text), inputBuffer), &Input{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLogPlain: 200 MB/s are wanted of a core.
func BenchmarkLogPlain(b *testing.B) { readBench(b, plainLog(8<<20)) }

// BenchmarkLogProgress is a log of which a third tells the step.
func BenchmarkLogProgress(b *testing.B) {
	var text bytes.Buffer
	for i := 0; text.Len() < 8<<20; i++ {
		fmt.Fprintf(&text, "[rank%d]: iteration %d: loss 2.%d, learning rate 1e-4\n[rank%d]: saved nothing, going on with the next of many batches\n[rank%d]: all is well with %d\n", i%8, i, i%100, i%8, i%8, i)
	}
	readBench(b, text.Bytes())
}

// BenchmarkLogTimeouts is a log in which every line is a fact.
func BenchmarkLogTimeouts(b *testing.B) {
	var text bytes.Buffer
	for i := 0; text.Len() < 8<<20; i++ {
		fmt.Fprintf(&text, "[rank%d]:[E722 01:02:03.593647243 ProcessGroupNCCL.cpp:629] [Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%d, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600050 milliseconds before timing out.\n", i%4096, i%4096, i/4096)
	}
	readBench(b, text.Bytes())
}

// BenchmarkWords is the scan alone.
func BenchmarkWords(b *testing.B) {
	text := plainLog(1 << 20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		lineWords.scan(text)
	}
}
