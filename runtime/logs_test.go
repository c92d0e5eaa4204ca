package runtime

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A log with a gap is read around it, at every offset and by every length.
func TestLogWithAGap(t *testing.T) {
	const block = 64 << 10
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var text []byte
	for len(text) < 5*block {
		text = fmt.Appendf(text, "%d\n", len(text))
	}
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
	size := int64(len(text))
	read := func(at, n int64) (string, int64) {
		var b bytes.Buffer
		next, copied, err := copyLog(&b, f, at, n)
		if err != nil {
			t.Fatal(err)
		}
		if kept := int64(b.Len()); strings.Contains(b.String(), "dropped") != (kept != copied) {
			t.Errorf("from %d: %d bytes are told of %d", at, copied, kept)
		}
		return b.String(), next
	}
	if got, next := read(0, 1<<62); got != string(text) || next != size {
		t.Errorf("a whole log: %d bytes, then at %d", len(got), next)
	}
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, block, 3*block); err != nil {
		t.Fatal(err)
	}
	mark := func(n int) string { return fmt.Sprintf("\n[yoi: %d bytes dropped: the log's limit]\n", n) }
	for _, c := range []struct {
		at, n int64
		want  string
		next  int64
	}{
		{0, 1 << 62, string(text[:block]) + mark(3*block) + string(text[4*block:]), size},
		{0, block, string(text[:block]), block},
		{0, block + 10, string(text[:block]) + mark(3*block) + string(text[4*block:4*block+10]), 4*block + 10},
		{2 * block, 10, mark(2*block) + string(text[4*block:4*block+10]), 4*block + 10},
		{4*block - 1, 1, mark(1) + string(text[4*block:4*block+1]), 4*block + 1},
		{4 * block, 1, string(text[4*block : 4*block+1]), 4*block + 1},
		{size, 1 << 62, "", size},
	} {
		if got, next := read(c.at, c.n); got != c.want || next != c.next {
			t.Errorf("%d bytes from %d: %d bytes, then at %d, want %d, %d", c.n, c.at, len(got), next, len(c.want), c.next)
		}
	}
}
