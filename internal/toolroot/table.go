package toolroot

import (
	"path"
	"slices"
)

// entry is what a program needs beside what its file says. All are patterns of
// path.Match for absolute paths; what the host does not have is left out.
type entry struct {
	names []string
	with  []string // programs that it starts
	trees []string // directories, whole
	files []string
	// scan are those of trees whose programs and libraries load further libraries.
	scan []string
}

var table = []entry{
	{
		names: []string{"git"},
		with:  []string{"sh"}, // hooks, aliases, editors, and some of its own programs
		trees: []string{"/usr/lib/git-core", "/usr/libexec/git-core", "/usr/share/git-core"},
		scan:  []string{"/usr/lib/git-core", "/usr/libexec/git-core"},
	},
	{names: []string{"make"}, with: []string{"sh"}, trees: []string{"/usr/include/gnumake.h"}},
	{
		names: []string{"gcc", "cc", "cpp", "c99", "gcc-*", "*-linux-gnu-gcc*"},
		with:  []string{"as", "ld", "cc"}, // make's own name for it
		trees: compiler, scan: compiler[:3],
		files: libc,
	},
	{
		names: []string{"g++", "c++", "g++-*", "*-linux-gnu-g++*"},
		with:  []string{"as", "ld", "c++"},
		trees: compiler, scan: compiler[:3],
		files: slices.Concat(libc, []string{"/usr/lib/*-linux-gnu/libstdc++.so.6"}),
	},
	{names: []string{"go", "gofmt"}, trees: []string{"/usr/local/go", "/usr/lib/go", "/usr/lib/go-*", "/usr/share/go-*", "/usr/lib/golang"}},
	{
		names: []string{"python3", "python3.*", "pip3"},
		trees: []string{"/usr/lib/python3", "/usr/lib/python3.*", "/usr/lib64/python3.*", "/usr/local/lib/python3.*", "/usr/share/python-wheels"},
		scan:  []string{"/usr/lib/python3.*", "/usr/lib64/python3.*", "/usr/lib/python3"},
	},
	{
		names: []string{"node", "nodejs", "npm", "npx"},
		with:  []string{"sh"},
		trees: []string{"/usr/lib/node_modules", "/usr/local/lib/node_modules", "/usr/share/nodejs", "/usr/share/node_modules", "/usr/lib/*-linux-gnu/nodejs"},
	},
	{
		names: []string{"perl"},
		trees: []string{"/usr/lib/*-linux-gnu/perl", "/usr/lib/*-linux-gnu/perl-base", "/usr/lib/*-linux-gnu/perl5", "/usr/share/perl", "/usr/share/perl5", "/usr/lib64/perl5"},
		scan:  []string{"/usr/lib/*-linux-gnu/perl", "/usr/lib/*-linux-gnu/perl-base", "/usr/lib/*-linux-gnu/perl5", "/usr/lib64/perl5"},
	},
	{
		names: []string{"java", "javac", "jar"},
		trees: []string{"/usr/lib/jvm", "/etc/java-*-openjdk"},
		scan:  []string{"/usr/lib/jvm"},
	},
	{names: []string{"rustc", "cargo"}, with: []string{"cc"}, trees: []string{"/usr/lib/rustlib"}, scan: []string{"/usr/lib/rustlib"}},
	{names: []string{"bash", "less", "vim", "nano", "tmux"}, trees: []string{"/usr/lib/terminfo", "/usr/share/terminfo"}},
}

// always is what the C library itself loads, whichever program uses it: the locale
// that the sandbox sets.
var always = entry{trees: []string{"/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8"}}

var (
	compiler = []string{"/usr/lib/gcc", "/usr/libexec/gcc", "/usr/lib/bfd-plugins", "/usr/include", "/usr/local/include"}
	// libc is what programs are linked with: objects, archives and linker scripts.
	libc = []string{
		"/usr/lib/*-linux-gnu/*crt*.o", "/usr/lib/*-linux-gnu/libc.so", "/usr/lib/*-linux-gnu/libc_nonshared.a", "/usr/lib/*-linux-gnu/libc.a",
		"/usr/lib/*-linux-gnu/libm.so", "/usr/lib/*-linux-gnu/libm.a", "/usr/lib/*-linux-gnu/libm-*.a", "/usr/lib/*-linux-gnu/libm.so.6",
		"/usr/lib/*-linux-gnu/libmvec.so*", "/usr/lib/*-linux-gnu/libmvec.a", "/usr/lib/*-linux-gnu/libpthread.a", "/usr/lib/*-linux-gnu/libdl.a",
		"/usr/lib/*-linux-gnu/librt.a", "/usr/lib/*-linux-gnu/libutil.a", "/usr/lib/*-linux-gnu/libresolv.so*", "/usr/lib/*-linux-gnu/libresolv.a",
		"/usr/lib/*-linux-gnu/libgcc_s.so.1",
	}
)

// groups are names for several programs.
var groups = map[string][]string{
	"coreutils": {
		"[", "basename", "cat", "chmod", "cksum", "comm", "cp", "cut", "date", "dd", "df", "dirname", "du", "echo", "env", "expand", "expr",
		"false", "fmt", "fold", "head", "id", "install", "join", "link", "ln", "ls", "md5sum", "mkdir", "mkfifo", "mktemp", "mv", "nl", "nproc",
		"numfmt", "od", "paste", "printenv", "printf", "pwd", "readlink", "realpath", "rm", "rmdir", "seq", "sha1sum", "sha256sum", "sha512sum",
		"shuf", "sleep", "sort", "split", "stat", "stdbuf", "sync", "tac", "tail", "tee", "test", "timeout", "touch", "tr", "true", "truncate",
		"tsort", "tty", "uname", "unexpand", "uniq", "unlink", "wc", "whoami", "yes",
	},
	"findutils": {"find", "xargs"},
	"diffutils": {"cmp", "diff", "diff3", "sdiff"},
	"binutils":  {"ar", "as", "ld", "nm", "objcopy", "objdump", "ranlib", "readelf", "size", "strip", "strings"},
}

// entriesOf are a program's entries in the table.
func entriesOf(name string) []entry {
	var out []entry
	for _, e := range table {
		for _, n := range e.names {
			if ok, err := path.Match(n, name); err == nil && ok {
				out = append(out, e)
				break
			}
		}
	}
	return out
}
