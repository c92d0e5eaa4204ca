package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrController is wrapped when limits need a controller that there is none of.
var ErrController = errors.New("no controller for it")

// Group is one control group: a directory on v2, one per controller on v1.
type Group struct {
	version int
	dirs    map[string]string // as Tree.dirs
}

// Lacks lists the controllers that limits need and the tree has not.
func (t *Tree) Lacks(l Limits) (names []string) {
	for _, c := range l.Controllers() {
		if !slices.Contains(t.Controllers, c) {
			names = append(names, c)
		}
	}
	if t.Version == 1 && l.MemoryHigh != 0 {
		names = append(names, "memory.high")
	}
	return names
}

// Plan names the directories of a group that is about to be made, by controller
// as Open takes them: to be written down first. Its limits decide which.
func (t *Tree) Plan(name string, l Limits) map[string]string {
	dirs := make(map[string]string)
	if t.Version == 2 {
		dirs[""] = path.Join(t.dirs[""], name)
		return dirs
	}
	for _, c := range l.Controllers() {
		if d, ok := t.dirs[toV1[c]]; ok {
			dirs[toV1[c]] = path.Join(d, name)
		}
	}
	return dirs
}

// Make makes the planned directories and sets the limits. On an error nothing is
// left of it; what was there before stays.
func Make(dirs map[string]string, l Limits) (g *Group, err error) {
	g = Open(dirs)
	made := make(map[string]string, len(dirs))
	defer func() {
		if err != nil {
			err = errors.Join(err, Open(made).Remove())
		}
	}()
	for c, d := range dirs {
		if err := os.Mkdir(d, 0o755); err != nil {
			return g, err
		}
		made[c] = d
	}
	settings := l.settings1()
	if g.version == 2 {
		settings = l.settings2()
	}
	for _, s := range settings {
		dir, ok := dirs[s.controller]
		if g.version == 2 {
			dir, ok = dirs[""], true
		}
		if !ok {
			return g, fmt.Errorf("%s: %w", s.file, ErrController)
		}
		if err := write(dir+"/"+s.file, s.value); err != nil && !(s.optional && errors.Is(err, fs.ErrNotExist)) {
			return g, err
		}
	}
	return g, nil
}

// Open is a group that exists, or did.
func Open(dirs map[string]string) *Group {
	g := &Group{version: 1, dirs: dirs}
	if _, ok := dirs[""]; ok {
		g.version = 2
	}
	return g
}

// Version is 2 or 1.
func (g *Group) Version() int { return g.version }

// Dir opens the group for CLONE_INTO_CGROUP; nil on v1, which has no such thing.
func (g *Group) Dir() (*os.File, error) {
	if g.version != 2 {
		return nil, nil
	}
	return os.OpenFile(g.dirs[""], unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// Tasks opens the files by which a process with one thread moves itself into a v1
// group; none on v2.
func (g *Group) Tasks() (files []*os.File, err error) {
	if g.version == 2 {
		return nil, nil
	}
	for _, d := range g.dirs {
		f, err := os.OpenFile(d+"/tasks", os.O_WRONLY, 0)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// Add moves a process, with all its threads, into the group.
func (g *Group) Add(pid int) error {
	for _, d := range g.dirs {
		if err := write(d+"/cgroup.procs", strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

// Events counts what the limits did.
type Events struct {
	// OOMKills are processes that the kernel killed because the group had no memory
	// left; TasksDenied are forks that it refused.
	OOMKills, TasksDenied uint64
}

// Events reads the group's counters. What a kernel does not count is 0.
func (g *Group) Events() Events {
	get := func(controller, file, key string) uint64 {
		dir := g.dirs[controller]
		if g.version == 2 {
			dir = g.dirs[""]
		}
		if dir == "" {
			return 0
		}
		b, err := os.ReadFile(dir + "/" + file)
		if err != nil {
			return 0
		}
		return value(string(b), key)
	}
	memory := "memory.events"
	if g.version == 1 {
		memory = "memory.oom_control" // oom_kill there since Linux 4.13
	}
	return Events{OOMKills: get("memory", memory, "oom_kill"), TasksDenied: get("pids", "pids.events", "max")}
}

// value is of a line "key value" of a flat keyed file.
func value(text, key string) uint64 {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// Remove removes the group's directories; absent ones are fine. A process that
// has just ended may keep its group busy for a moment.
func (g *Group) Remove() error {
	var errs []error
	for _, d := range g.dirs {
		err := remove(d)
		for wait := time.Millisecond; errors.Is(err, unix.EBUSY) && wait < time.Second; wait *= 2 {
			time.Sleep(wait)
			err = remove(d)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// remove is rmdir(2) of a control group and of nothing else: what is asked for
// may have been read from a record.
func remove(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path.Dir(dir), &st); err != nil {
		return err
	}
	if st.Type != unix.CGROUP_SUPER_MAGIC && st.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("rmdir %s: %w", path.Base(dir), unix.EXDEV)
	}
	return unix.Rmdir(dir)
}
