// Package patch reads what `git diff --binary` writes, far enough to say which
// paths it would touch and to refuse what no honest diff holds.
//
// It exists so that a bad patch is refused with its reason before a workspace
// is made for it. It is not the defence: git applies the patch inside a sandbox
// on that workspace alone, and checks every path again. So a patch that this
// package reads otherwise than git does can at worst fail later.
//
// It does not look into hunks beyond counting their lines, and does not inflate
// binary data: that they fit is git's to say.
package patch
