package rig

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Canaries are values that nobody has had before.
type Canaries struct {
	T      testing.TB
	Values map[string]string
}

// NewCanaries makes a value for each name.
func NewCanaries(t testing.TB, names ...string) Canaries {
	c := Canaries{t, map[string]string{}}
	for _, n := range names {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		c.Values[n] = "canary-" + hex.EncodeToString(b[:])
	}
	return c
}

// Silent fails the test if one of the values is in b.
func (c Canaries) Silent(where string, b []byte) {
	c.T.Helper()
	for name, v := range c.Values {
		if bytes.Contains(b, []byte(v)) {
			c.T.Errorf("the value of %s is in %s", name, where)
		}
	}
}

// SilentBelow looks into every file of a directory.
func (c Canaries) SilentBelow(dir string) {
	c.T.Helper()
	looked := 0
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) { // a live Runtime's
			return nil
		}
		looked++
		c.Silent(p, b)
		return err
	})
	if err != nil || looked == 0 {
		c.T.Errorf("%d files of %s were looked into: %v", looked, dir, err)
	}
}

// SilentProcesses looks at the command line and environment of every process that
// is not a Worker's: those are in another pid namespace.
func (c Canaries) SilentProcesses() {
	c.T.Helper()
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		c.T.Fatal(err)
	}
	pids, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range pids {
		cmdline, _ := os.ReadFile(p + "/cmdline")
		c.Silent(p+"/cmdline", cmdline)
		ns, err := os.Readlink(p + "/ns/pid")
		if err != nil || ns != own {
			continue
		}
		environ, _ := os.ReadFile(p + "/environ")
		c.Silent(p+"/environ", environ)
	}
}

// SilentMemory looks at a daemon's whole writable memory.
func (c Canaries) SilentMemory(pid int) {
	c.T.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		c.T.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		c.T.Fatal(err)
	}
	defer mem.Close()
	looked := 0
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || !strings.HasPrefix(mode, "rw") || to-from > 256<<20 {
			continue
		}
		b := make([]byte, to-from)
		if n, err := mem.ReadAt(b, from); err == nil || n > 0 {
			looked += n
			c.Silent(fmt.Sprintf("the memory of process %d", pid), b[:n])
		}
	}
	if looked == 0 {
		c.T.Error("no memory was looked at")
	}
}
