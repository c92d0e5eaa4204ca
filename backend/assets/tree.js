export function parent(path) {
    const i = path.replace(/\/+$/, "").lastIndexOf("/");
    return i < 0 ? "" : path.slice(0, i);
}
export function join(dir, name) {
    return dir === "" || dir === "." ? name : `${dir}/${name}`;
}
