package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
)

func TestSettings(t *testing.T) {
	l := Limits{
		MemoryMax: 1 << 30, MemoryHigh: 1 << 29, SwapMax: 5, Tasks: 10, CPUPercent: 150, CPUWeight: 200, IOWeight: 50,
		IOReadBPS: 4096, IOWriteBPS: 8192, Device: "8:0",
	}
	text := func(ss []setting) (out []string) {
		for _, s := range ss {
			out = append(out, s.controller+" "+s.file+"="+s.value)
		}
		return out
	}
	want2 := []string{
		"cpu cpu.max=150000 100000", "cpu cpu.weight=200", "io io.weight=default 50", "io io.max=8:0 rbps=4096", "io io.max=8:0 wbps=8192",
		"memory memory.high=536870912", "memory memory.max=1073741824", "memory memory.swap.max=5", "pids pids.max=10",
	}
	want1 := []string{
		"cpu cpu.cfs_period_us=100000", "cpu cpu.cfs_quota_us=150000", "cpu cpu.shares=2048", "blkio blkio.weight=250",
		"blkio blkio.throttle.read_bps_device=8:0 4096", "blkio blkio.throttle.write_bps_device=8:0 8192",
		"memory memory.limit_in_bytes=1073741824", "memory memory.memsw.limit_in_bytes=1073741829", "pids pids.max=10",
	}
	if got := text(l.settings2()); !slices.Equal(got, want2) {
		t.Errorf("v2: %q", got)
	}
	if got := text(l.settings1()); !slices.Equal(got, want1) {
		t.Errorf("v1: %q", got)
	}
	if got := l.Controllers(); !slices.Equal(got, []string{"cpu", "io", "memory", "pids"}) {
		t.Errorf("controllers %q", got)
	}
	none := Limits{}
	if len(none.Controllers())+len(none.settings1())+len(none.settings2()) != 0 {
		t.Error("no limit is a setting")
	}
}

func TestLacks(t *testing.T) {
	v1 := &Tree{Version: 1, Controllers: []string{"cpu", "memory"}}
	for _, test := range []struct {
		t    *Tree
		l    Limits
		want []string
	}{
		{v1, Limits{MemoryMax: 1, CPUPercent: 1}, nil},
		{v1, Limits{MemoryHigh: 1, Tasks: 1}, []string{"pids", "memory.high"}},
		{&Tree{}, Limits{CPUWeight: 1}, []string{"cpu"}},
	} {
		if got := test.t.Lacks(test.l); !slices.Equal(got, test.want) {
			t.Errorf("%+v lacks %q, want %q", test.l, got, test.want)
		}
	}
}

func TestParse(t *testing.T) {
	const mountinfo = `25 1 0:22 / /proc rw - proc proc rw
30 25 0:26 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
31 25 0:27 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw master:1 - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 / /sys/fs/cgroup/with\040space rw - cgroup cgroup rw,name=systemd
broken
`
	got := parseMountinfo([]byte(mountinfo))
	want := []hierarchy{
		{point: "/sys/fs/cgroup/unified", root: "/"},
		{point: "/sys/fs/cgroup/cpu,cpuacct", root: "/docker/abc", controllers: []string{"rw", "cpu", "cpuacct"}},
		{point: "/sys/fs/cgroup/with space", root: "/", controllers: []string{"rw", "name=systemd"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("mountinfo: %+v", got)
	}
	own := parseOwn([]byte("4:cpu,cpuacct:/docker/abc/x\n1:name=systemd:/a\n0::/user.slice\nbroken\n"))
	if own["cpu"] != "/docker/abc/x" || own["cpuacct"] != "/docker/abc/x" || own[""] != "/user.slice" {
		t.Errorf("own: %v", own)
	}
	for _, test := range []struct {
		root, path, want string
		ok               bool
	}{
		{"/", "/a", "/a", true}, {"/docker/abc", "/docker/abc/x", "/x", true}, {"/docker/abc", "/docker/abc", "/", true},
		{"/docker/abc", "/docker/abcd", "", false}, {"/docker/abc", "/other", "", false}, {"/", "", "", false},
	} {
		if got, ok := below(test.root, test.path); got != test.want || ok != test.ok {
			t.Errorf("%s in %s is %q, %v", test.path, test.root, got, ok)
		}
	}
	if n := value("low 3\noom_kill 7\noom_kill_disable 0\n", "oom_kill"); n != 7 {
		t.Errorf("oom_kill %d", n)
	}
}

// The choice of a place on v2, on directories that look like it.
func TestUnified(t *testing.T) {
	for _, test := range []struct {
		name        string
		own         string
		controllers string // of own; "-" for no such group
		delegated   string // the group that bears the mark
		want        string // where groups are made; "" for nowhere
	}{
		{"delegated", "/yoi.slice/helper", "cpu memory pids hugetlb", "/yoi.slice/helper", "/yoi.slice/helper"},
		{"a subgroup of what is delegated", "/yoi.slice/helper/yoi-self", "cpu memory", "/yoi.slice/helper", "/yoi.slice/helper"},
		{"somebody else's", "/user.slice/session", "cpu memory pids", "", ""},
		{"without controllers", "/yoi.slice/helper", "", "/yoi.slice/helper", ""},
		{"out of sight", "/elsewhere", "-", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			file := func(name, content string) {
				t.Helper()
				if err := errors.Join(os.MkdirAll(path.Dir(root+name), 0o755), os.WriteFile(root+name, []byte(content), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			if test.controllers != "-" {
				file(test.own+"/cgroup.controllers", test.controllers+"\n")
			}
			if d := test.delegated; d != "" {
				file(d+"/cgroup.subtree_control", "")
				file(d+"/"+leaf+"/cgroup.procs", "")
				if err := unix.Setxattr(root+d, "user.delegate", []byte("1"), 0); err != nil {
					t.Fatal(err)
				}
			}
			tree := &Tree{dirs: make(map[string]string)}
			if err := tree.useV2(hierarchy{point: root, root: "/"}, test.own); err != nil {
				t.Fatal(err)
			}
			// A manager limits by the controllers that there are, delegated or not.
			there := strings.HasPrefix(test.controllers, "cpu memory")
			if m := tree.Managed(); (m.Version == 2 && slices.Contains(m.Controllers, "memory") && !slices.Contains(m.Controllers, "hugetlb")) != there {
				t.Errorf("managed: %+v", m)
			}
			if test.want == "" {
				if tree.Version != 0 || tree.Reason == "" || tree.Fix == "" {
					t.Errorf("%+v", tree)
				}
				return
			}
			if tree.Version != 2 || tree.dirs[""] != root+test.want || len(tree.Controllers) == 0 || slices.Contains(tree.Controllers, "hugetlb") {
				t.Errorf("%+v", tree)
			}
			if moved, err := os.ReadFile(root + test.delegated + "/" + leaf + "/cgroup.procs"); err != nil || (string(moved) == "0") != (test.own == test.delegated) {
				t.Errorf("moved itself: %q, %v", moved, err)
			}
			if dirs := tree.Plan("yoi-wk-1", Limits{Tasks: 1}); len(dirs) != 1 || dirs[""] != root+test.want+"/yoi-wk-1" {
				t.Errorf("plan %v", dirs)
			}
		})
	}
}

// On the real kernel: a group holds its process, counts, and goes.
func TestGroup(t *testing.T) {
	testenv.Privileged(t)
	tree, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	l := Limits{Tasks: 2}
	if lacks := tree.Lacks(l); len(lacks) > 0 {
		if b, err := os.ReadFile("/proc/cgroups"); err == nil && !regexp.MustCompile(`(?m)^pids\t.*\t1$`).Match(b) {
			testenv.MissingKernelFeature(t, "the pids controller", "/proc/cgroups")
		}
		t.Fatalf("no control groups with pids here: %s", tree.Reason)
	}
	dirs := tree.Plan(fmt.Sprintf("yoi-test-%d", os.Getpid()), l)
	g, err := Make(dirs, l)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Remove()
	if _, err := Make(dirs, l); !errors.Is(err, os.ErrExist) {
		t.Errorf("a group was made twice: %v", err)
	}
	// It waits for its place in the group, then wants one process too many.
	cmd := exec.Command("sh", "-c", "read x; sleep 0 & sleep 0 & wait")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if err := g.Remove(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a group in use was removed: %v", err)
	}
	in.Close()
	_ = cmd.Wait() // the counter tells
	if n := g.Events().TasksDenied; n == 0 {
		t.Error("no fork was refused")
	}
	for range 2 {
		if err := g.Remove(); err != nil {
			t.Errorf("removing: %v", err)
		}
	}
	for _, d := range dirs {
		if _, err := os.Stat(d); !os.IsNotExist(err) {
			t.Errorf("%s is left", d)
		}
	}
	if _, err := Make(dirs, Limits{Tasks: 2, MemoryMax: 1 << 62, IOReadBPS: 4096, Device: "nonsense"}); err == nil {
		t.Error("impossible limits were accepted")
	}
	for _, d := range dirs {
		if _, err := os.Stat(d); !os.IsNotExist(err) {
			t.Errorf("%s is left of a group that could not be made", d)
		}
	}
}

// A record may name anything; only control groups are removed.
func TestRemoveIsOfGroupsOnly(t *testing.T) {
	dir := t.TempDir() + "/yoi-wk-1"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Open(map[string]string{"pids": dir}).Remove(); err == nil || !strings.Contains(err.Error(), "yoi-wk-1") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error("a directory of somebody's was removed")
	}
}
