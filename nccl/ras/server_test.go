package ras

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// fakeServer answers as a process of a job does. Every way in which one may fail is a field.
type fakeServer struct {
	reports  []string // JSON or text, one a query, the last again and again
	text     []string // what is given in the text form, if other than reports
	old      bool     // before 2.28.7: knows no forms
	greeting string   // instead of SERVER PROTOCOL 2
	silent   bool     // accepts and says nothing
	hangUp   bool     // closes at once
	cut      int      // bytes of a report, then nothing more comes; 0: all
	drop     int      // bytes of a report, then the connection is closed
	slow     time.Duration
	badJSON  bool

	queries int
	got     []string // commands
}

// start listens until the test ends.
func (f *fakeServer) start(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.serve(c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

func (f *fakeServer) serve(c net.Conn) {
	defer c.Close()
	if f.hangUp {
		return
	}
	isJSON := false
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		command := strings.TrimRight(line, "\r\n")
		f.got = append(f.got, command)
		time.Sleep(f.slow)
		switch {
		case f.silent:
		case f.greeting != "":
			fmt.Fprint(c, f.greeting)
		case command == "CLIENT PROTOCOL 2":
			fmt.Fprint(c, "SERVER PROTOCOL 2\n")
		case strings.HasPrefix(command, "SET FORMAT ") && !f.old:
			isJSON = strings.HasSuffix(command, "json")
			fmt.Fprint(c, "OK\n")
		case strings.HasPrefix(command, "TIMEOUT "):
			fmt.Fprint(c, "OK\n")
		case command == "VERBOSE STATUS":
			f.report(c, isJSON)
			return
		default:
			fmt.Fprintf(c, "ERROR: Unknown command %s\n", command)
		}
	}
}

func (f *fakeServer) report(c net.Conn, isJSON bool) {
	list := f.reports
	if !isJSON && f.text != nil {
		list = f.text
	}
	text := list[min(f.queries, len(list)-1)]
	f.queries++
	if isJSON && f.badJSON {
		text = "{\"nccl_version\": \"2.28.9\", \"communicators\": ["
	}
	switch {
	case f.drop > 0:
		fmt.Fprint(c, text[:f.drop])
	case f.cut > 0:
		fmt.Fprint(c, text[:f.cut])
		_, _ = bufio.NewReader(c).ReadString('\n') // until the client has enough
	default:
		fmt.Fprint(c, text)
	}
}
