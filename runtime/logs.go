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
		m, err := f.ReadAt(buf[:min(n-copied, int64(len(buf)))], at)
		if err != nil && err != io.EOF {
			return at, copied, logFailed(err)
		}
		if m == 0 {
			return at, copied, nil
		}
		// Asked afterwards, since the gap may have grown over what was just read.
		from, to, err := nsexec.LogGap(f)
		if err != nil {
			return at, copied, logFailed(err)
		}
		if at >= from && at < to {
			if _, err := fmt.Fprintf(w, "\n[yoi: %d bytes dropped: the log's limit]\n", to-at); err != nil {
				return at, copied, err
			}
			at = to
			continue
		}
		if at < from && at+int64(m) > from {
			m = int(from - at)
		}
		m, err = w.Write(buf[:m])
		at, copied = at+int64(m), copied+int64(m)
		if err != nil {
			return at, copied, err
		}
	}
	return at, copied, nil
}

func logFailed(err error) error {
	return policy.Errorf(policy.CodeInternal, "runtime.logs", "the log cannot be read").Because(err)
}
