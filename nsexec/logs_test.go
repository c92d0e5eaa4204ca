package nsexec

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// A log that reaches its limit keeps its beginning and its end, at the offsets at
// which they were written, and no more of the disk than the limit.
func TestLogLimit(t *testing.T) {
	const line, lines = "%07d\n", 1 << 20
	for _, c := range []struct {
		limit uint64
		cut   bool
	}{{0, false}, {MinLog, true}, {5 << 20, true}, {8 << 20, false}, {1 << 30, false}} {
		dir := sandboxDir(t)
		s := newSpec("/bin/sh", "-c", fmt.Sprintf(`seq -f %%07.0f 0 %d; echo end >&2`, lines-1))
		s.Logs = Logs{Dir: mounts.Source{Path: dir}, Stdout: "out", Stderr: "err", Limit: c.limit}
		run(t, s)
		f, err := os.Open(dir + "/out")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Size != 8*lines {
			t.Errorf("limit %d: the log has %d bytes, %v", c.limit, st.Size, err)
		}
		from, to, err := LogGap(f)
		if err != nil || (to > from) != c.cut {
			t.Errorf("limit %d: a gap from %d to %d, %v", c.limit, from, to, err)
		}
		if limit := int64(c.limit); c.cut && (st.Blocks*512 > limit+128<<10 || from < limit/2-64<<10 || st.Size-to < limit/8) {
			t.Errorf("limit %d: %d bytes on the disk, missing are %d to %d", limit, st.Blocks*512, from, to)
		}
		b, err := os.ReadFile(dir + "/out")
		if err != nil {
			t.Fatal(err)
		}
		for i := range lines {
			at := int64(8 * i)
			want := fmt.Sprintf(line, i)
			if at >= from && at < to {
				want = string(make([]byte, 8))
			}
			if string(b[at:at+8]) != want {
				t.Fatalf("limit %d: at %d stands %q, want %q", c.limit, at, b[at:at+8], want)
			}
		}
		if b, err := os.ReadFile(dir + "/err"); string(b) != "end\n" || err != nil {
			t.Errorf("stderr: %q %v", b, err)
		}
	}
	s := newSpec("/bin/true")
	s.Logs = Logs{Dir: mounts.Source{Path: sandboxDir(t)}, Stdout: "out", Limit: MinLog - 1}
	_, _, err := tryRun(t, s)
	wantCode(t, err, policy.CodeLimitsInvalid)
}

// A Worker that plays with the pipe of its log (reads from it, closes it, fills it)
// does not keep PID 1 from its other work.
func TestLogPipeIsTheWorkersAlone(t *testing.T) {
	for name, script := range map[string]string{
		"reads":  `cat </dev/stdout >/dev/null & cat </dev/stdout >/dev/null & i=0; while [ $i -lt 200 ]; do echo word; i=$((i+1)); done`,
		"closes": `exec >&- 2>&-`,
		"one":    `exec 2>&1; echo both`,
		"large":  `/usr/bin/python3 -c 'import fcntl; fcntl.fcntl(1, 1031, 1 << 20)'; head -c 3000000 /dev/zero`,
	} {
		dir := sandboxDir(t)
		s := newSpec("/bin/sh", "-c", script+"; sleep 60 & exit 7")
		s.Logs, s.WallClock = Logs{Dir: mounts.Source{Path: dir}, Stdout: "out", Stderr: "err", Limit: MinLog}, 30*time.Second
		if _, o := run(t, s); o.ExitCode != 7 || o.TimedOut || o.Lost {
			t.Errorf("%s: %+v", name, o)
		}
		out, err := os.ReadFile(dir + "/out")
		if err != nil || name == "one" && !bytes.Equal(out, []byte("both\n")) || name == "large" && len(out) != 3000000 {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
	}
}
