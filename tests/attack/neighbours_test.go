package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestAttackNeighbour: two Workers of one Runtime root at once. Neither sees
// the other's processes or files, and as root they are different users of the
// host, who own nothing of each other's.
func TestAttackNeighbour(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			s := newStand(t, uid)
			quiet := s.y.Cmd("run", "--repo", s.repo.Dir, "--", "sh", "-c", "echo secret >/scratch/secret; echo secret >secret; echo ready; read end; exit 4")
			in := rig.Stdin(t, quiet)
			if line := rig.Begin(t, quiet); line != "ready\n" {
				t.Fatalf("the neighbour says %q", line)
			}
			found := rig.Command(t, "find", s.y.Root, "-name", "secret")
			paths := strings.Fields(found)
			if len(paths) != 2 {
				t.Errorf("the neighbour's files are %q", paths)
			}
			r := s.y.Run(t, "run", "--repo", s.repo.Dir, "--", "sh", "-c",
				"./intruder processes; ./intruder see "+strings.Join(paths, " ")+" /scratch/secret /workspace/small/secret; ls -A /scratch /workspace; id -u")
			want := "refused: nobody else\nrefused: none of them is there\n/scratch:\n\n/workspace:\nsmall\n1000\n"
			if r.Code != 0 || r.Stdout != want {
				t.Errorf("exit %d, the intruder says\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
			in.Close()
			_ = quiet.Wait() // read fails at the end of the input, and sh exits with 4
			if code := quiet.ProcessState.ExitCode(); code != 4 {
				t.Errorf("the neighbour ended with %d", code)
			}
			rig.Clean(t, s.y.Root)
		})
	}
}

// TestAttackUIDRanges looks at live Workers from the host: their uid ranges do
// not overlap, and hold no uid of the host's.
func TestAttackUIDRanges(t *testing.T) {
	s := newStand(t, 0)
	bases := map[uint32]bool{}
	for range 4 {
		cmd := s.y.Cmd("run", "--repo", s.repo.Dir, "--", "sh", "-c", "cat /proc/self/uid_map; read end")
		in := rig.Stdin(t, cmd)
		// Read inside, the second number is in the parent user namespace: the host's.
		line := rig.Begin(t, cmd)
		defer func() {
			in.Close()
			_ = cmd.Wait() // the shell's read has failed
		}()
		var inside, outside, count uint32
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		base := hostBase(t, cmd.Process.Pid)
		if inside != 0 || count != 65536 || base < 1<<20 || base%65536 != 0 || bases[base] {
			t.Errorf("uid map %q, on the host from %d", strings.TrimSpace(line), base)
		}
		bases[base] = true
	}
}

// hostBase reads the uid map of a descendant of pid, from the host's side.
func hostBase(t *testing.T, pid int) uint32 {
	t.Helper()
	for _, child := range descendants(pid) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", child))
		if err != nil {
			continue
		}
		var inside, outside, count uint32
		if _, err := fmt.Sscan(string(b), &inside, &outside, &count); err == nil && outside != 0 {
			return outside
		}
	}
	t.Fatal("no descendant in a user namespace")
	return 0
}

func descendants(pid int) []int {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var out []int
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for s := range strings.FieldsSeq(string(b)) {
			var child int
			if _, err := fmt.Sscan(s, &child); err == nil {
				out = append(append(out, child), descendants(child)...)
			}
		}
	}
	return out
}

// TestAttackSharedCache: what is shared is read-only for every Worker, and its
// content is what it was, whatever the Worker tries.
func TestAttackSharedCache(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		for _, strategy := range []string{"overlay", "copy"} {
			t.Run(fmt.Sprintf("%d/%s", uid, strategy), func(t *testing.T) {
				s := newStand(t, uid)
				args := []string{"run", "--repo", s.repo.Dir, "--strategy", strategy, "--"}
				s.y.OK(t, append(args, "true")...)
				before := rig.Contents(t, rig.Cache(s.y.Root, "small")...)
				s.y.OK(t, append(args, "sh", "-c", `
					o=/run/yoi/objects/small
					find $o -type f | while read f; do
						echo x >>"$f"; rm -f "$f"; mv "$f" /scratch/; chmod 777 "$f"; touch "$f"; truncate -s 0 "$f"; ln "$f" /scratch/l; setfattr -n user.x -v y "$f"
					done 2>/dev/null
					mkdir $o/new; touch $o/new2; chmod 777 $o; mv $o /run/yoi/objects/other; rm -rf $o
					find . -type f -exec sh -c 'chmod 777 "$1"; echo changed >>"$1"; touch "$1"' sh {} \; 2>/dev/null
					rm -rf .git * 2>/dev/null
					echo gone >README.md; exit 0`)...)
				for _, d := range rig.Difference(before, rig.Contents(t, rig.Cache(s.y.Root, "small")...)) {
					t.Errorf("the cache changed: %s", d)
				}
				rig.Clean(t, s.y.Root)
			})
		}
	}
}
