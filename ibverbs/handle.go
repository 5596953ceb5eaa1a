package ibverbs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// ErrClosed is the use of a handle that was closed.
var ErrClosed = errors.New("the handle is closed")

// BusyError says that a handle cannot be closed while what was made from it exists.
type BusyError struct {
	What     string         // "protection domain"
	Children map[string]int // how many of each kind: "queue pair" → 2
}

func (e *BusyError) Error() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(e.Children)) {
		parts = append(parts, fmt.Sprintf("%d × %s", e.Children[kind], kind))
	}
	return fmt.Sprintf("close %s: still in use by %s; close them first", e.What, strings.Join(parts, ", "))
}

// tree guards the fields of all handles. They change rarely: making and closing goes through the kernel anyway.
var tree struct {
	sync.Mutex
	live map[string]int64
}

// handle is the library's object behind one of the exported types, and its place in the order of closing.
type handle struct {
	kind     string
	ptr      unsafe.Pointer
	parents  []*handle
	children map[string]int
}

// Live returns how many handles of each kind exist, kinds with none left out.
func Live() map[string]int64 {
	tree.Lock()
	defer tree.Unlock()
	return maps.Clone(tree.live)
}

func count(kind string, by int64) {
	if tree.live == nil {
		tree.live = make(map[string]int64)
	}
	if tree.live[kind] += by; tree.live[kind] == 0 {
		delete(tree.live, kind)
	}
}

// open makes the object with create, below parents. They count the child before it exists, so that none can be closed meanwhile.
func (h *handle) open(kind string, create func(ptr *unsafe.Pointer) error, parents ...*handle) error {
	tree.Lock()
	for i, p := range parents {
		if p == nil || p.ptr == nil {
			release(kind, parents[:i])
			tree.Unlock()
			return fmt.Errorf("make %s: %w", kind, ErrClosed)
		}
		if p.children == nil {
			p.children = make(map[string]int)
		}
		p.children[kind]++
	}
	tree.Unlock()
	var ptr unsafe.Pointer
	err := create(&ptr)
	tree.Lock()
	defer tree.Unlock()
	if err != nil {
		release(kind, parents)
		return err
	}
	h.kind, h.ptr, h.parents = kind, ptr, parents
	count(kind, 1)
	return nil
}

func release(kind string, parents []*handle) {
	for _, p := range parents {
		if p.children[kind]--; p.children[kind] == 0 {
			delete(p.children, kind)
		}
	}
}

// close destroys the object. Closing again does nothing. When destroy fails, the handle stays open.
func (h *handle) close(destroy func(ptr unsafe.Pointer) error) error {
	tree.Lock()
	if len(h.children) > 0 {
		defer tree.Unlock()
		return &BusyError{h.kind, maps.Clone(h.children)}
	}
	ptr := h.ptr
	h.ptr = nil
	tree.Unlock()
	if ptr == nil {
		return nil
	}
	err := destroy(ptr)
	tree.Lock()
	defer tree.Unlock()
	if err != nil {
		h.ptr = ptr
		return err
	}
	release(h.kind, h.parents)
	count(h.kind, -1)
	return nil
}

// use is the object for a call, or ErrClosed.
func (h *handle) use() (unsafe.Pointer, error) {
	if h == nil {
		return nil, ErrClosed
	}
	tree.Lock()
	defer tree.Unlock()
	if h.ptr == nil {
		return nil, fmt.Errorf("%s: %w", h.kind, ErrClosed)
	}
	return h.ptr, nil
}
