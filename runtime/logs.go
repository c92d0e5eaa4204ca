package runtime

import (
	"fmt"
	"io"
	"os"

	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// logChunk is what is read of a log at once.
const logChunk = 128 << 10

// copyLog copies at most n bytes of a log from an offset on, and returns the offset
// behind them and how many they were. Where a log that reached its limit has a gap, a
// line says how much is missing; offsets are those at which the Worker wrote.
func copyLog(w io.Writer, f *os.File, at, n int64) (next, copied int64, err error) {
	buf := make([]byte, min(n, logChunk))
	for copied < n {
		m, missing, _, err := readLog(f, buf[:min(n-copied, int64(len(buf)))], at)
		if err != nil {
			return at, copied, logFailed(err)
		}
		if missing > 0 {
			if _, err := fmt.Fprintf(w, "\n[yoi: %d bytes dropped: the log's limit]\n", missing); err != nil {
				return at, copied, err
			}
			at += missing
			continue
		}
		if m == 0 {
			return at, copied, nil
		}
		m, err = w.Write(buf[:m])
		at, copied = at+int64(m), copied+int64(m)
		if err != nil {
			return at, copied, err
		}
	}
	return at, copied, nil
}

// readLog reads what a log has at an offset, or says how many bytes are missing there.
// before says that they are missing behind what was read.
func readLog(f *os.File, buf []byte, at int64) (n int, missing int64, before bool, err error) {
	n, err = f.ReadAt(buf, at)
	if err != nil && err != io.EOF {
		return 0, 0, false, err
	}
	if n == 0 {
		return 0, 0, false, nil
	}
	// Asked afterwards, since the gap may have grown over what was just read.
	from, to, err := nsexec.LogGap(f)
	switch {
	case err != nil:
		return 0, 0, false, err
	case at >= from && at < to:
		return 0, to - at, false, nil
	case at < from && at+int64(n) >= from:
		return int(from - at), 0, true, nil
	}
	return n, 0, false, nil
}

func logFailed(err error) error {
	return policy.Errorf(policy.CodeInternal, "runtime.logs", "the log cannot be read").Because(err)
}
