package patch

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

const op = "patch.read"

const (
	// MaxBytes is the largest patch that is taken.
	MaxBytes = 32 << 20
	// MaxFiles bounds how many files one patch touches.
	MaxFiles = 100_000
	// MaxBinary bounds what the binary parts claim to inflate to, all together.
	MaxBinary = 1 << 30
)

// Summary says what a patch would do.
type Summary struct {
	// Files counts the files that it touches.
	Files int
	// Paths are the names of both sides, sorted, each once.
	Paths []string
}

// Read checks a whole patch and sums it up. An error is a *policy.Diagnostic of
// code patch_invalid, patch_escapes, patch_too_large or patch_submodule.
func Read(b []byte) (Summary, error) {
	if len(b) > MaxBytes {
		return Summary{}, policy.Errorf(policy.CodePatchTooLarge, op, "the patch is larger than %d bytes", MaxBytes)
	}
	r := &reader{rest: b, paths: make(map[string]bool)}
	for r.more() {
		if err := r.section(); err != nil {
			return Summary{}, err
		}
	}
	if r.files == 0 {
		return Summary{}, r.invalid("holds no file in git's format").WithHint("Make it with: git diff --binary HEAD.")
	}
	s := Summary{Files: r.files, Paths: make([]string, 0, len(r.paths))}
	for p := range r.paths {
		s.Paths = append(s.Paths, p)
	}
	slices.Sort(s.Paths)
	return s, nil
}

// reader goes through the patch line by line.
type reader struct {
	rest   []byte
	number int // of the line that take returned last
	files  int
	binary int64
	paths  map[string]bool
}

func (r *reader) more() bool { return len(r.rest) > 0 }

// peek returns the next line without its newline.
func (r *reader) peek() []byte {
	line, _, _ := bytes.Cut(r.rest, []byte{'\n'})
	return line
}

func (r *reader) take() []byte {
	line := r.peek()
	r.rest = r.rest[min(len(line)+1, len(r.rest)):]
	r.number++
	return line
}

func (r *reader) invalid(format string, args ...any) *policy.Diagnostic {
	return policy.Errorf(policy.CodePatchInvalid, op, "the patch "+format, args...).With("line", strconv.Itoa(r.number))
}

// section reads one file's part, or one line of text before, between or after
// files, as git format-patch(1) writes it. What git would take for a diff
// without git's own header is refused: it has no modes, and its names may be
// anything.
func (r *reader) section() error {
	line := r.take()
	header, ok := bytes.CutPrefix(line, []byte("diff --git "))
	if !ok {
		for _, p := range []string{"--- ", "+++ ", "@@ ", "diff --", "GIT binary patch"} {
			if bytes.HasPrefix(line, []byte(p)) && string(line) != "-- " {
				return r.invalid("holds a diff that is not in git's format").WithHint("Make it with: git diff --binary HEAD.")
			}
		}
		return nil
	}
	if r.files++; r.files > MaxFiles {
		return policy.Errorf(policy.CodePatchTooLarge, op, "the patch touches more than %d files", MaxFiles)
	}
	named, err := r.headers()
	if err != nil {
		return err
	}
	if !named { // a mode alone, an empty file, or binary data
		if err := r.bothNames(string(header)); err != nil {
			return err
		}
	}
	return r.body()
}

// headers reads the extended header lines and reports whether they, or the ---
// and +++ lines, named the file.
func (r *reader) headers() (named bool, err error) {
	for r.more() {
		line := string(r.peek())
		key, value := cutKey(line)
		switch key {
		case "old mode", "new mode", "deleted file mode", "new file mode":
			err = r.mode(value)
		case "index":
			if _, mode, ok := strings.Cut(value, " "); ok {
				err = r.mode(mode)
			}
		case "similarity index", "dissimilarity index":
		case "rename from", "rename to", "copy from", "copy to":
			named = true
			err = r.name(value, false)
		case "---", "+++":
			if value != "/dev/null" {
				named = true
				err = r.name(strings.TrimSuffix(value, "\t"), true)
			}
		default:
			return named, nil
		}
		if err != nil {
			return named, err
		}
		r.take()
	}
	return named, nil
}

var headerKeys = []string{
	"old mode", "new mode", "deleted file mode", "new file mode", "index", "similarity index", "dissimilarity index",
	"rename from", "rename to", "copy from", "copy to", "---", "+++",
}

func cutKey(line string) (key, value string) {
	for _, k := range headerKeys {
		if v, ok := strings.CutPrefix(line, k+" "); ok {
			return k, v
		}
	}
	return "", ""
}

// mode refuses what is neither a file nor a symbolic link.
func (r *reader) mode(s string) error {
	switch strings.TrimRight(s, " \r") {
	case "100644", "100755", "120000", "100664", "100600", "100700", "100775":
		return nil
	case "160000":
		return policy.Errorf(policy.CodePatchSubmodule, op, "the patch changes a submodule's commit").With("line", strconv.Itoa(r.number+1))
	}
	return r.invalid("has a file mode that is none of git's")
}

// body reads hunks or binary data.
func (r *reader) body() error {
	for r.more() {
		line := r.peek()
		switch {
		case bytes.HasPrefix(line, []byte("@@ -")):
			if err := r.hunk(); err != nil {
				return err
			}
		case string(line) == "GIT binary patch":
			r.take()
			if err := r.binaryData(); err != nil {
				return err
			}
		case bytes.HasPrefix(line, []byte("Binary files ")):
			r.take()
			return r.invalid("leaves the content of a binary file out").WithHint("Make it with --binary: git diff --binary HEAD.")
		default:
			return nil
		}
	}
	return nil
}

// hunk consumes exactly the lines that its header counts, so that content which
// looks like a header is content.
func (r *reader) hunk() error {
	oldLines, newLines, ok := hunkCounts(string(r.take()))
	if !ok {
		return r.invalid("has a malformed hunk header")
	}
	for oldLines > 0 || newLines > 0 {
		if !r.more() {
			return r.invalid("ends in the middle of a hunk")
		}
		line := r.take()
		kind := byte(' ') // an empty context line whose space was stripped
		if len(line) > 0 {
			kind = line[0]
		}
		switch kind {
		case ' ':
			oldLines, newLines = oldLines-1, newLines-1
		case '-':
			oldLines--
		case '+':
			newLines--
		case '\\':
		default:
			return r.invalid("has a line in a hunk that is none")
		}
		if oldLines < 0 || newLines < 0 {
			return r.invalid("has a hunk that does not fit its header")
		}
	}
	if bytes.HasPrefix(r.peek(), []byte(`\ `)) { // no newline at the end of the file
		r.take()
	}
	return nil
}

// hunkCounts reads "@@ -l[,s] +l[,s] @@".
func hunkCounts(s string) (oldLines, newLines int, ok bool) {
	s, ok = strings.CutPrefix(s, "@@ -")
	ranges, _, end := strings.Cut(s, " @@")
	before, after, plus := strings.Cut(ranges, " +")
	if !ok || !end || !plus {
		return 0, 0, false
	}
	oldLines, okOld := rangeCount(before)
	newLines, okNew := rangeCount(after)
	return oldLines, newLines, okOld && okNew
}

func rangeCount(s string) (int, bool) {
	start, size, counted := strings.Cut(s, ",")
	if _, err := strconv.ParseUint(start, 10, 31); err != nil {
		return 0, false
	}
	if !counted {
		return 1, true
	}
	n, err := strconv.ParseUint(size, 10, 31)
	return int(n), err == nil
}

// binaryData reads the forward part and, where there is one, the reverse part.
func (r *reader) binaryData() error {
	for part := range 2 {
		kind, size, ok := strings.Cut(string(r.peek()), " ")
		n, err := strconv.ParseUint(size, 10, 40)
		if !ok || err != nil || (kind != "literal" && kind != "delta") {
			if part == 1 {
				return nil
			}
			return r.invalid("has malformed binary data")
		}
		r.take()
		if r.binary += int64(n); r.binary > MaxBinary {
			return policy.Errorf(policy.CodePatchTooLarge, op, "the patch's binary data would inflate to more than %d bytes", MaxBinary)
		}
		for {
			if !r.more() {
				return r.invalid("ends in the middle of binary data")
			}
			line := r.take()
			if len(line) == 0 {
				break
			}
			if !base85Line(line) {
				return r.invalid("has malformed binary data")
			}
		}
	}
	return nil
}

// base85Line checks a line's length byte against its length: five characters
// for each four bytes begun.
func base85Line(line []byte) bool {
	n := 0
	switch c := line[0]; {
	case 'A' <= c && c <= 'Z':
		n = int(c-'A') + 1
	case 'a' <= c && c <= 'z':
		n = int(c-'a') + 27
	default:
		return false
	}
	return len(line) == 1+(n+3)/4*5
}
