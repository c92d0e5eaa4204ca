package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoFreezer is wrapped when a group, or this host, has none.
var ErrNoFreezer = errors.New("no freezer")

// freezerV1 is the controller's name on v1. On v2 every group can be frozen, whatever
// controllers there are (cgroup-v2.rst, "cgroup.freeze", Linux 5.2).
const freezerV1 = "freezer"

// PlanFreezer names the directory of a group that is only to be frozen: where this
// process may make one, on v2 if it can, by controller as Open takes it. With a
// process whose own group is delegated and has limits, the group is below that one
// on v2, so that who is moved there keeps the limits; 0 is none.
func PlanFreezer(name string, pid int) (map[string]string, error) {
	mounted, err := hierarchies("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	own, err := ownPaths("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	v2 := own[""]
	if pid != 0 {
		theirs, err := ownPaths("/proc/" + strconv.Itoa(pid) + "/cgroup")
		if err != nil {
			return nil, err
		}
		v2 = theirs[""]
	}
	for _, h := range mounted {
		at, ok := below(h.root, v2)
		if h.controllers != nil || !ok {
			continue
		}
		dir := path.Join(h.point, at)
		switch {
		case pid != 0:
		case delegated(path.Dir(dir)): // this process is in its leaf
			dir = path.Dir(dir)
		case managed() && !delegated(dir):
			continue
		}
		if _, err := os.Stat(dir + "/cgroup.procs"); err == nil && unix.Access(dir, unix.W_OK) == nil && unix.Access(dir+"/cgroup.procs", unix.W_OK) == nil {
			return map[string]string{"": path.Join(dir, name)}, nil
		}
	}
	for _, h := range mounted {
		at, ok := below(h.root, own[freezerV1])
		if !slices.Contains(h.controllers, freezerV1) || !ok {
			continue
		}
		if dir := path.Join(h.point, at); unix.Access(dir, unix.W_OK) == nil {
			return map[string]string{freezerV1: path.Join(dir, name)}, nil
		}
	}
	return nil, fmt.Errorf("%w: no control group hierarchy in which this process may make groups has one", ErrNoFreezer)
}

// CanFreeze tells whether the group can be frozen.
func (g *Group) CanFreeze() bool {
	_, v1 := g.dirs[freezerV1]
	return g.version == 2 || v1
}

// freezeTime is how long the processes of a group may take to stop. One in an
// uninterruptible sleep does not: it may wait for a slow disk.
const freezeTime = 10 * time.Second

// SetFrozen asks for the group's processes to stop, or to go on.
func (g *Group) SetFrozen(on bool) error {
	dir, v1 := g.dirs[freezerV1]
	switch {
	case g.version == 2 && on:
		return write(g.dirs[""]+"/cgroup.freeze", "1")
	case g.version == 2:
		return write(g.dirs[""]+"/cgroup.freeze", "0")
	case v1 && on:
		return write(dir+"/freezer.state", "FROZEN")
	case v1:
		return write(dir+"/freezer.state", "THAWED")
	}
	return ErrNoFreezer
}

// AwaitFrozen returns when all processes of the group have stopped.
func (g *Group) AwaitFrozen() error {
	for deadline := time.Now().Add(freezeTime); ; time.Sleep(time.Millisecond) { // v1 has no event for it
		if g.frozen() {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not all processes stop: %w", unix.EBUSY)
		}
	}
}

func (g *Group) frozen() bool {
	if g.version == 2 {
		b, err := os.ReadFile(g.dirs[""] + "/cgroup.events")
		return err == nil && value(string(b), "frozen") == 1
	}
	b, err := os.ReadFile(g.dirs[freezerV1] + "/freezer.state")
	return err == nil && strings.TrimSpace(string(b)) == "FROZEN"
}

// Has tells which processes are in a group that can be frozen.
func (g *Group) Has() (map[int]bool, error) {
	dir := g.dirs[""]
	if g.version == 1 {
		dir = g.dirs[freezerV1]
	}
	b, err := os.ReadFile(dir + "/cgroup.procs")
	if err != nil {
		return nil, err
	}
	out := make(map[int]bool)
	for f := range strings.FieldsSeq(string(b)) {
		if n, err := strconv.Atoi(f); err == nil {
			out[n] = true
		}
	}
	return out, nil
}
