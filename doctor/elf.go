package doctor

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
)

// ncclText is what NCCL says of itself with NCCL_DEBUG=VERSION; every release has it among its constants (looked at from 2.18.3 to 2.32.3).
var ncclText = regexp.MustCompile(`NCCL version (\d+\.\d+\.\d+[^+\s]*)\+cuda`)

// ncclVersion looks for the version in a library itself; "" when it does not tell. Only a regular file below the root is opened, and no link out of it followed.
func (m *machine) ncclVersion(name string) string {
	root, err := os.OpenRoot(m.Root)
	if err != nil {
		return ""
	}
	defer root.Close()
	f, err := root.OpenFile(strings.TrimPrefix(name, "/"), os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe of this name must not hold the check up
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	text, err := constants(f)
	if found := ncclText.FindSubmatch(text); err == nil && found != nil {
		return string(found[1])
	}
	return ""
}

// maxSection bounds what is read of a library: NCCL's constants are half a megabyte in one of 400.
const maxSection = 16 << 20

// constants is the section .rodata of a 64-bit little-endian ELF file. It reads by the layouts of debug/elf but not with its reader, which unpacks a compressed
// table of names of any size before one can look.
func constants(r io.ReaderAt) ([]byte, error) {
	var h elf.Header64
	if err := layout(r, 0, &h); err != nil {
		return nil, err
	}
	if string(h.Ident[:4]) != elf.ELFMAG || h.Ident[elf.EI_CLASS] != byte(elf.ELFCLASS64) || h.Ident[elf.EI_DATA] != byte(elf.ELFDATA2LSB) {
		return nil, errors.New("no 64-bit little-endian ELF file")
	}
	sections := make([]elf.Section64, h.Shnum) // 4 MiB at most
	if int(h.Shentsize) != binary.Size(elf.Section64{}) || h.Shstrndx >= h.Shnum {
		return nil, errors.New("no table of sections")
	}
	if err := layout(r, h.Shoff, sections); err != nil {
		return nil, err
	}
	names, err := content(r, &sections[h.Shstrndx])
	if err != nil {
		return nil, err
	}
	for i := range sections {
		if s := &sections[i]; uint64(s.Name) < uint64(len(names)) && bytes.HasPrefix(names[s.Name:], []byte(".rodata\x00")) {
			return content(r, s)
		}
	}
	return nil, errors.New("no section .rodata")
}

// layout reads fixed data at an offset.
func layout(r io.ReaderAt, at uint64, into any) error {
	return binary.Read(io.NewSectionReader(r, int64(at), int64(binary.Size(into))), binary.LittleEndian, into)
}

func content(r io.ReaderAt, s *elf.Section64) ([]byte, error) {
	if s.Size > maxSection || elf.SectionType(s.Type) == elf.SHT_NOBITS || elf.SectionFlag(s.Flags)&elf.SHF_COMPRESSED != 0 {
		return nil, errors.New("the section is too large, compressed, or not in the file")
	}
	b := make([]byte, s.Size)
	_, err := io.ReadFull(io.NewSectionReader(r, int64(s.Off), int64(s.Size)), b)
	return b, err
}
