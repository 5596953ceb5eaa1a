package evidence

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
)

// maxZipStream is how large a zip may be that does not lie in a file of its own: its list of members is at its end.
const maxZipStream = 256 << 20

// unpack reads an archive's members. Nothing of it is ever written anywhere.
func (w *worker) unpack(kind string, buf *bufio.Reader, l leaf, file fs.File) {
	if l.depth >= w.opt.MaxDepth {
		w.failed(l.name, 0, fmt.Errorf("an archive within %d others: not read", l.depth))
		return
	}
	inner := leaf{name: l.name, inFolder: l.inFolder, depth: l.depth + 1, budget: l.budget}
	switch kind {
	case "gzip":
		z, err := gzip.NewReader(buf)
		if err != nil {
			w.failed(l.name, 0, err)
			return
		}
		w.readMember(z, inner)
	case "bzip2":
		w.readMember(bzip2.NewReader(buf), inner)
	case "tar":
		w.tar(buf, inner)
	case "zip":
		w.zip(buf, inner, file)
	}
}

// readMember reads what comes out of a packer, and refuses it when it grows beyond measure.
func (w *worker) readMember(r io.Reader, l leaf) {
	if w.members.Add(1) > int64(w.opt.MaxFiles) {
		w.failed(l.name, 0, fmt.Errorf("more than %d members: not read", w.opt.MaxFiles))
		return
	}
	if kind := kindByName(l.name); kind != "" && strings.Contains(l.name, "!") {
		w.out.Inputs = append(w.out.Inputs, Input{Name: l.name, Kind: kind, Rank: -1})
		return
	}
	w.readStream(&counted{r: r, most: w.opt.MaxFileBytes, grown: func(n int64) error { return w.grow(l.budget, n) }}, l, nil)
}

func (w *worker) grow(b *budget, n int64) error {
	b.out += n
	if b.out > ratioFrom && b.out > w.opt.MaxRatio*max(b.in, 1) {
		return fmt.Errorf("%d bytes have come out of %d: more than %d times as much, a bomb rather than a log; not read further", b.out, b.in, w.opt.MaxRatio)
	}
	return nil
}

// badMember tells why a member of an archive is refused; "" if it is not.
func badMember(name string, mode fs.FileMode) string {
	slashed := strings.ReplaceAll(name, `\`, "/")
	switch {
	case strings.HasPrefix(slashed, "/") || len(slashed) > 1 && slashed[1] == ':':
		return "an absolute path"
	case !filepath.IsLocal(filepath.FromSlash(slashed)) || strings.Contains("/"+slashed+"/", "/../"):
		return "a path that leads out of the archive"
	case strings.ContainsRune(name, 0):
		return "a name with a zero byte"
	case mode&fs.ModeSymlink != 0:
		return "a link, which is not followed"
	case mode&(fs.ModeDevice|fs.ModeCharDevice|fs.ModeNamedPipe|fs.ModeSocket|fs.ModeIrregular) != 0:
		return "a device, pipe or socket"
	}
	return ""
}

// tar reads members as they come. One archive after another in a file is not looked for.
func (w *worker) tar(buf *bufio.Reader, l leaf) {
	t := tar.NewReader(buf)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			w.failed(l.name, 0, fmt.Errorf("the archive breaks off or is damaged: %w", err))
			return
		}
		if h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader || hidden(h.Name) {
			continue
		}
		m := leaf{name: l.name + "!" + printable(h.Name), inFolder: true, depth: l.depth, budget: l.budget}
		why := badMember(h.Name, h.FileInfo().Mode())
		if why == "" && h.Typeflag == tar.TypeLink {
			why = "a link, which is not followed"
		}
		if why != "" {
			w.failed(m.name, 0, errors.New("refused: "+why))
			continue
		}
		if y := h.ModTime.Year(); y > 2000 {
			w.year = y
		}
		w.readMember(t, m)
		if w.members.Load() > int64(w.opt.MaxFiles) {
			return
		}
	}
}

// zip reads members from the list at the archive's end.
func (w *worker) zip(buf *bufio.Reader, l leaf, file fs.File) {
	z, size, err := openZip(buf, file)
	if err != nil {
		w.failed(l.name, 0, err)
		return
	}
	if l.depth == 1 {
		l.budget.in = max(l.budget.in, size)
	}
	for _, f := range z.File {
		if strings.HasSuffix(f.Name, "/data.pkl") || f.Name == "data.pkl" { // weights
			w.out.Inputs = append(w.out.Inputs, Input{Name: l.name, Kind: "checkpoint", Bytes: size, Rank: -1})
			return
		}
	}
	for _, f := range z.File {
		if f.FileInfo().IsDir() || hidden(f.Name) {
			continue
		}
		m := leaf{name: l.name + "!" + printable(f.Name), inFolder: true, depth: l.depth, budget: l.budget}
		if why := badMember(f.Name, f.Mode()); why != "" {
			w.failed(m.name, 0, errors.New("refused: "+why))
			continue
		}
		r, err := f.Open()
		if err != nil {
			w.failed(m.name, 0, err)
			continue
		}
		if y := f.Modified.Year(); y > 2000 {
			w.year = y
		}
		w.readMember(r, m)
		r.Close()
		if w.members.Load() > int64(w.opt.MaxFiles) {
			return
		}
	}
}

// openZip uses the file where there is one; a stream is held in memory, which is why it must be small.
func openZip(buf *bufio.Reader, file fs.File) (*zip.Reader, int64, error) {
	if at, ok := file.(io.ReaderAt); ok {
		info, err := file.Stat()
		if err != nil {
			return nil, 0, err
		}
		if info.Mode().IsRegular() {
			z, err := zip.NewReader(at, info.Size())
			return z, info.Size(), ignoreInsecure(err)
		}
	}
	all, err := io.ReadAll(io.LimitReader(buf, maxZipStream+1))
	if err != nil {
		return nil, 0, err
	}
	if len(all) > maxZipStream {
		return nil, 0, fmt.Errorf("a zip of more than %d MiB in a stream: give it as a file", maxZipStream>>20)
	}
	z, err := zip.NewReader(bytes.NewReader(all), int64(len(all)))
	return z, int64(len(all)), ignoreInsecure(err)
}

// ignoreInsecure: each member's name is looked at by itself.
func ignoreInsecure(err error) error {
	if errors.Is(err, zip.ErrInsecurePath) {
		return nil
	}
	return err
}

// hidden tells members that archives of some systems carry along.
func hidden(name string) bool {
	return strings.HasPrefix(name, "__MACOSX/") || strings.HasPrefix(filepath.Base(name), ".") && !strings.Contains(name, "..")
}

// printable is a member's name without what a terminal would obey.
func printable(name string) string {
	name = strings.ToValidUTF8(name[:min(len(name), 1000)], "?")
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return '?'
		}
		return r
	}, name)
}
