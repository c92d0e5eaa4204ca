// Package toolroot finds out which files of the host a program needs to run.
//
// A policy that names its tools gets a root in which those exist, with what they
// load, and nothing else: an agent that is to build has no ssh, no curl, no sudo to
// think of. What a program loads is read out of its file: an ELF file's interpreter
// and libraries (elf(5), ld.so(8)), a script's interpreter (execve(2)). Nothing is
// executed for it: ldd(1) would run the program that it looks at.
//
// What a program loads by a name that is in no such place (a compiler's include
// files, git's programs, a language's library) is in a small table: see table.go.
//
// It reads the host's system directories only, follows their links by itself and
// refuses what leads elsewhere, so that no name in a policy can bring a file of
// somebody's home into a sandbox. It promises which programs exist, not what code
// runs: whoever may write files and execute them can bring code of their own.
package toolroot
