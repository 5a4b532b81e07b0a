// Exchanges a token for a session: a cookie that no script can read. The token is kept nowhere.
document.getElementById("log-in").addEventListener("submit", async event => {
  event.preventDefault();
  const said = document.getElementById("said"), token = document.getElementById("token");
  said.textContent = "";
  try {
    const answer = await fetch("/api/v1/session", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token: token.value }),
    });
    if (!answer.ok) throw new Error((await answer.json()).detail);
    location.replace(location.pathname === "/open" ? "/" : location.href);
  } catch (error) {
    said.textContent = error.message;
  }
});
