// A text of an error is searched as it is pasted: the search would take its colons, stars
// and tildes for operators, and find nothing.
const post = Worker.prototype.postMessage
Worker.prototype.postMessage = function (message, ...others) {
  const asks = message !== null && typeof message === "object" && message.type === 2
  if (asks && typeof message.data === "string") {
    message = { ...message, data: message.data.replace(/[:^~*+]/g, " ") }
  }
  return post.call(this, message, ...others)
}
