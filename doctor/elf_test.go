package doctor

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// library is the least ELF file: its header, the names of sections, one section of constants, and the table of the three sections, of which the first is empty.
func library(text string) string {
	const names = "\x00.rodata\x00.shstrtab\x00"
	const head = 64
	h := elf.Header64{Type: uint16(elf.ET_DYN), Version: 1, Shoff: uint64(head + len(names) + len(text)), Ehsize: head, Shentsize: 64, Shnum: 3, Shstrndx: 2}
	copy(h.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	sections := []elf.Section64{{},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: head + uint64(len(names)), Size: uint64(len(text))},
		{Name: 9, Type: uint32(elf.SHT_STRTAB), Off: head, Size: uint64(len(names))},
	}
	var b bytes.Buffer
	for _, part := range []any{h, []byte(names + text), sections} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			panic(err)
		}
	}
	return b.String()
}

// The library that tests build is one for the standard reader, too.
func TestLibrary(t *testing.T) {
	t.Parallel()
	f, err := elf.NewFile(strings.NewReader(library("text")))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := f.Section(".rodata").Data(); string(b) != "text" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

func TestNCCLVersion(t *testing.T) {
	t.Parallel()
	const text = "x\x00NCCL version 2.28.9+cuda12.9\x00y"
	section := func(which, field int, value uint64) string { // with one field of 8 bytes of a section changed
		b := []byte(library(text))
		at := len(b) - (3-which)*64 + field
		binary.LittleEndian.PutUint64(b[at:], value)
		return string(b)
	}
	const flags, offset, size = 8, 24, 32
	b := library(text)
	for name, c := range map[string]struct{ file, want string }{
		"whole":              {b, "2.28.9"},
		"release candidate":  {library("NCCL version 2.31.0rc1+cuda13.0\x00"), "2.31.0rc1"},
		"other texts":        {library("Mismatched NCCL version detected\x00use NCCL version 2.18.1 or later\x00NCCL version 2.30.7+cuda12.9\n"), "2.30.7"},
		"no version":         {library("NCCL version %d.%d.%d+cuda"), ""},
		"another library":    {library("RCCL version 2.20.5+hip6.2"), ""},
		"empty":              {"", ""},
		"text":               {text, ""},
		"header alone":       {b[:64], ""},
		"cut":                {b[:len(b)-1], ""},
		"32 bits":            {b[:4] + "\x01" + b[5:], ""},
		"compressed":         {section(1, flags, uint64(elf.SHF_COMPRESSED)), ""},
		"too large":          {section(1, size, maxSection+1), ""},
		"beyond the end":     {section(1, size, maxSection), ""},
		"names too large":    {section(2, size, 1<<62), ""},
		"offset before":      {section(1, offset, 1<<63), ""},
		"no section by name": {strings.Replace(b, ".rodata", ".rodatb", 1), ""},
	} {
		n := Node{Root: t.TempDir()}
		if err := write(filepath.Join(n.Root, "lib/libnccl.so.2"), c.file); err != nil {
			t.Fatal(err)
		}
		if got := newMachine(n).ncclVersion("/lib/libnccl.so.2"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Only regular files below the root are read.
func TestNCCLVersionElsewhere(t *testing.T) {
	t.Parallel()
	n := Node{Root: t.TempDir()}
	outside := filepath.Join(t.TempDir(), "libnccl.so.2")
	if err := os.WriteFile(outside, []byte(library("NCCL version 2.28.9+cuda12.9")), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(n.Root, "out")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(n.Root, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	change(t, &n, "dir/")
	for _, name := range []string{"/out", "/pipe", "/dir", "/none"} {
		if got := newMachine(n).ncclVersion(name); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// FuzzConstants: no file makes the reader fail by itself or return more than its limit.
func FuzzConstants(f *testing.F) {
	f.Add([]byte(library("NCCL version 2.28.9+cuda12.9")))
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		text, err := constants(bytes.NewReader(b))
		if err == nil && !bytes.Contains(b, text) || len(text) > maxSection {
			t.Errorf("%d bytes that are not in the file, %v", len(text), err)
		}
	})
}
