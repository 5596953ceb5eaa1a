package ncclog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Open reads files, all files below folders, and stdin for "-", as one log. Files that end in .gz, or begin as such, are decompressed. In a
// folder, binary files and hidden ones are passed over. Only an input that cannot be opened is an error; one that breaks off is a File with
// Error.
func Open(paths []string, stdin io.Reader) (*Log, error) {
	r := NewReader()
	for _, path := range paths {
		if path == "-" {
			_ = r.addPlainOrGz(stdin, "stdin", false) // what was read is of use, and File.Error says the rest
			continue
		}
		if err := r.addPath(path); err != nil {
			return nil, err
		}
	}
	return r.Finish(), nil
}

func (r *Reader) addPath(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return r.addFile(path, false)
	}
	found := 0
	err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name != path && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.IsDir() || !isFile(name, d) {
			return nil
		}
		found++
		return r.addFile(name, true)
	})
	if err == nil && found == 0 {
		err = fmt.Errorf("%s: no files in this folder", path)
	}
	return err
}

// isFile follows links, because log folders often hold them; a link to a folder is not followed, which could go round in circles.
func isFile(name string, d fs.DirEntry) bool {
	if d.Type().IsRegular() {
		return true
	}
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

func (r *Reader) addFile(path string, inFolder bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_ = r.addPlainOrGz(f, path, inFolder) // as for stdin
	return nil
}

var gzMagic = []byte{0x1f, 0x8b}

func (r *Reader) addPlainOrGz(in io.Reader, name string, inFolder bool) error {
	buf := bufio.NewReaderSize(in, 64<<10)
	head, err := buf.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		r.log.Files = append(r.log.Files, File{Name: name, Error: err.Error()})
		return err
	}
	if bytes.HasPrefix(head, gzMagic) {
		gz, err := gzip.NewReader(buf)
		if err != nil {
			r.log.Files = append(r.log.Files, File{Name: name, Error: err.Error()})
			return err
		}
		return r.Add(gz, name)
	}
	if inFolder && bytes.IndexByte(head, 0) >= 0 {
		r.log.Files = append(r.log.Files, File{Name: name, Error: "binary, passed over"})
		return nil
	}
	return r.Add(buf, name)
}
