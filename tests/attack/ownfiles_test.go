package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// fills writes to each directory in memory until it is refused, in bytes and in
// files, and says why and how far it came.
const fills = `
import errno, os
for at in ["/tmp", os.environ["HOME"], "/dev/shm"]:
    n = 0
    try:
        with open(at + "/big", "wb", 0) as f:
            while n < 1 << 30: n += f.write(bytes(1 << 20))
    except OSError as e: print(at, errno.errorcode[e.errno], n >> 20)
    else: print(at, "took", n >> 20)
    os.unlink(at + "/big")
    n = 0
    try:
        while n < 100000:
            os.close(os.open(at + "/f%d" % n, os.O_CREAT)); n += 1
    except OSError as e: print(at, "files", errno.errorcode[e.errno])
    else: print(at, "files", n)
    for i in range(n): os.unlink(at + "/f%d" % i)
`

// TestAttackMemoryFiles: a Worker fills all that it has in memory: it is refused, and
// by default before the host is out of memory. Under a limit of its memory those
// files count.
func TestAttackMemoryFiles(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			s := newStand(t, uid)
			out := s.y.OK(t, "run", "--repo", s.repo.Dir, "--limit", "tmp_size=8M", "--limit", "home_size=16M", "--limit", "shm_size=4M", "--", "python3", "-c", fills)
			for _, want := range []string{`(?m)^/tmp ENOSPC 8$`, `(?m)^/tmp files ENOSPC$`, `(?m)^/home/worker ENOSPC 1[56]$`, `(?m)^/home/worker files ENOSPC$`, `(?m)^/dev/shm ENOSPC ([4-9]|1\d|20)$`, `(?m)^/dev/shm files ENOSPC$`} {
				if !regexp.MustCompile(want).MatchString(out) {
					t.Errorf("%s is not what it says:\n%s", want, out)
				}
			}
			var si unix.Sysinfo_t
			if err := unix.Sysinfo(&si); err != nil {
				t.Fatal(err)
			}
			out = s.y.OK(t, "run", "--repo", s.repo.Dir, "--", "stat", "-f", "-c", "%b %S %c", "/tmp", "/home/worker", "/dev/shm")
			var all uint64
			for line := range strings.Lines(out) {
				var blocks, size, inodes uint64
				if _, err := fmt.Sscan(line, &blocks, &size, &inodes); err != nil || blocks*size < 64<<20 || inodes > 1<<18 {
					t.Errorf("%q: %d bytes, %d inodes, %v", line, blocks*size, inodes, err)
				}
				all += blocks * size
			}
			if memory := si.Totalram * uint64(si.Unit); all > memory/2+(128<<20) {
				t.Errorf("%d bytes of files in memory, on a host with %d", all, memory)
			}
			if uid == 0 {
				var ev runtime.Evidence
				s.y.Run(t, "run", "--json", "--repo", s.repo.Dir, "--require", "limits", "--limit", "memory_max=64M", "--limit", "swap_max=0", "--", "dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=512").Want(t, 137).JSON(t, &ev)
				if o := ev.Workers[0].Outcome; o == nil || !o.OOMKilled {
					t.Errorf("with 64 MiB it wrote 512 to memory: %+v", o)
				}
			}
			rig.Clean(t, s.y.Root)
		})
	}
}

var dropped = regexp.MustCompile(`\n\[yoi: (\d+) bytes dropped: the log's limit\]\n`)

// TestAttackLogFlood: what a Worker says is never more on the disk than its limit, at
// no moment, and what is kept is the beginning and the end.
func TestAttackLogFlood(t *testing.T) {
	testenv.Root(t)
	const limit, flood = 1 << 20, 24 << 20
	script := fmt.Sprintf(`echo first words; stty -onlcr 2>/dev/null; head -c %d /dev/zero | tr '\0' x; head -c %d /dev/zero >&2; echo last words`, flood, flood/2)
	for _, uid := range []int{0, rig.Ordinary} {
		for _, terminal := range []bool{false, true} {
			t.Run(fmt.Sprint(uid, terminal), func(t *testing.T) {
				s := newStand(t, uid)
				s.y.OK(t, "repo", "add", "--id", "app", s.repo.Dir)
				var ws, w struct{ ID string }
				s.y.Run(t, "ws", "create", "--json", "app").Want(t, 0).JSON(t, &ws)
				args := []string{"worker", "spawn", "--json", ws.ID, "--limit", "log_size=1M"}
				if terminal {
					args = append(args, "--tty")
				}
				s.y.Run(t, append(args, "--", "sh", "-c", script)...).Want(t, 0).JSON(t, &w)
				wait := s.y.Cmd("worker", "wait", w.ID)
				if err := wait.Start(); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- wait.Wait() }()
				// A block of the file system is on its way when the limit is reached.
				most, bound := int64(0), int64(limit+(128<<10))
				for live := true; live; {
					select {
					case err := <-ended:
						if err != nil {
							t.Fatal(err)
						}
						live = false
					default:
					}
					for _, stream := range []string{"stdout", "stderr"} {
						var st unix.Stat_t
						err := unix.Stat(filepath.Join(s.y.Root, "workers", w.ID, "logs", stream), &st)
						if err != nil && !(terminal && os.IsNotExist(err)) {
							t.Fatal(err)
						}
						most = max(most, st.Blocks*512)
					}
				}
				if most > bound || most < limit/2 {
					t.Errorf("a log of at most %d bytes had %d of the disk", limit, most)
				}
				said, total := s.y.OK(t, "worker", "logs", w.ID), int64(flood+len("first words\nlast words\n"))
				if terminal {
					total += flood / 2
				}
				kept := wantGap(t, said, total)
				if !strings.HasPrefix(said, "first words") || !strings.HasSuffix(strings.ReplaceAll(said, "\r", ""), "last words\n") || kept < limit/2 {
					t.Errorf("kept are %d bytes, from %.20q to %.20q", kept, said, said[max(0, len(said)-20):])
				}
				if !terminal {
					wantGap(t, s.y.OK(t, "worker", "logs", "--stderr", w.ID), flood/2)
				}
				s.y.OK(t, "ws", "rm", "--discard", ws.ID)
				rig.Clean(t, s.y.Root)
			})
		}
	}
}

// wantGap wants what is missing to be told, to the byte.
func wantGap(t *testing.T, said string, total int64) (kept int64) {
	t.Helper()
	m := dropped.FindStringSubmatch(said)
	if m == nil {
		t.Fatalf("%d bytes without a word of what is missing", len(said))
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	kept = int64(len(said) - len(m[0]))
	// A terminal may have turned a line's end into two.
	if err != nil || kept+n < total || kept+n > total+2 {
		t.Errorf("%d bytes are kept and %d dropped, of %d", kept, n, total)
	}
	return kept
}
